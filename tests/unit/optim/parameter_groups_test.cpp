// SPDX-License-Identifier: MIT
// Optimizer settings per parameter: each parameter is updated as by a separate optimizer with its settings.
#include <doctest/doctest.h>

#include <map>

#include <weft/comm/threads.hpp>
#include <weft/optim/muon.hpp>
#include <weft/parallel/strategy.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/weft.hpp>

#include "../../elements.hpp"

using namespace weft;
using test::elements_of;

namespace {

struct net {
  linear<5, 7> backbone;
  linear<7, 3> head;
  auto operator()(expression auto x) const { return head(tanh(backbone(x))); }
};

const auto adjust = [](const std::string& name, adamw& of) {
  if (name.starts_with("backbone.")) of.lr *= 0.125;
  if (name.ends_with(".bias")) of.weight_decay = 0;
};

/// Three backward passes, each followed by `step(number)`.
template <class Context, class Step>
void train(const net& m, Context& c, Step step) {
  for (int s = 0; s < 3; ++s) {
    tape steps(c);
    const auto x = randn<float>(extents<4, 5>{}, {.seed = static_cast<std::uint64_t>(s) + 10});
    steps.backward(steps.eval(mean(square(m(x)))));
    step(s);
  }
}
/// The parameters after updates by separate optimizers.
std::vector<float> expected() {
  net m;
  initialize(m, 3);
  std::map<std::string, adamw> own;
  train(m, default_context(), [&](int s) {
    for (const auto& [name, p] : named_parameters(m)) {
      const double lr = s == 2 ? 0.02 : 0.01;
      adamw& of = own[name];
      of.lr = name[0] == 'b' ? lr / 8 : lr;
      of.weight_decay = name.find("bias") == name.npos ? 0.5 : 0;
      update_parameters(of, state_dict_t{{name, p}});
    }
  });
  return elements_of(named_parameters(m));
}

}  // namespace

TEST_CASE("each parameter is updated with its own settings, also after a change of those of all") {
  net m;
  initialize(m, 3);
  parameter_groups optimizer{adamw{.lr = 0.01, .weight_decay = 0.5}, adjust};
  train(m, default_context(), [&](int s) {
    if (s == 2) optimizer.settings.lr = 0.02;
    optimizer.step(m);
  });
  CHECK(elements_of(named_parameters(m)) == expected());
  CHECK(optimizer.steps == 3);
  CHECK(optimizer.state.contains("exp_avg", "backbone.weight"));
}

TEST_CASE("the same where ranks shard parameters and state") {
  const auto whole = expected();
  run_ranks(2, [&](communicator& ranks) {
    net m;
    initialize(m, 3);
    parameter_groups optimizer{adamw{.lr = 0.01, .weight_decay = 0.5}, adjust};
    auto run = bind<policy<strategy::fully_sharded<3>>>(m, optimizer, ranks);
    train(m, run, [&](int s) {
      if (s == 2) optimizer.settings.lr = 0.02;
      run.step();
    });
    const auto all = elements_of(run.full());
    REQUIRE(all.size() == whole.size());
    for (std::size_t i = 0; i < all.size(); ++i) CHECK(all[i] == doctest::Approx(whole[i]).epsilon(1e-6));
  });
}

TEST_CASE("settings out of range are refused before any parameter changes") {
  net m;
  parameter_groups optimizer{sgd{}, [](const std::string& name, sgd& of) {
                               if (name == "head.bias") of.momentum = -1;
                             }};
  const auto before = m.backbone.weight.to_vector();
  const auto x = ones<float>(extents<4, 5>{});
  tape steps;
  steps.backward(steps.eval(mean(square(m(x)))));
  CHECK_THROWS_WITH_AS(optimizer.step(m), doctest::Contains("momentum"), value_error);
  CHECK(m.backbone.weight.to_vector() == before);
  CHECK(optimizer.steps == 0);
  optimizer.settings.lr = -1;
  CHECK_THROWS_WITH_AS(optimizer.step(m), doctest::Contains("lr"), value_error);
}

TEST_CASE("it is to checkpoints and strategies the optimizer that it adjusts") {
  const auto nothing = [](const std::string&, auto&) {};
  using of_adamw = decltype(parameter_groups{adamw(), nothing});
  CHECK(std::string(of_adamw::saved_as) == "adamw");
  static_assert(optimizer_like<of_adamw> && of_adamw::assigns_once && !of_adamw::needs_whole);
  static_assert(decltype(parameter_groups{muon(), nothing})::needs_whole);
}

TEST_CASE("a bound run goes on after settings that were refused") {
  net m;
  double momentum = -1;
  parameter_groups optimizer{sgd{}, [&](const std::string& name, sgd& of) {
                               if (name == "head.bias") of.momentum = momentum;
                             }};
  auto run = bind<policy<strategy::single>>(m, optimizer);
  const auto before = m.backbone.weight.to_vector();
  tape steps(run);
  steps.backward(steps.eval(mean(square(m(ones<float>(extents<4, 5>{}))))));
  CHECK_THROWS_WITH_AS(run.step(), doctest::Contains("momentum"), value_error);
  CHECK(m.backbone.weight.to_vector() == before);
  momentum = 0.5;
  run.step();
  CHECK(m.backbone.weight.to_vector() != before);
  CHECK(optimizer.steps == 1);
}
