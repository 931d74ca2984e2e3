// SPDX-License-Identifier: MIT
// Settings of an optimizer by parameter: each is updated as by an optimizer of its own with these settings.
#include <doctest/doctest.h>

#include <map>

#include <weft/comm/threads.hpp>
#include <weft/optim/muon.hpp>
#include <weft/parallel/strategy.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/weft.hpp>

using namespace weft;

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

/// The parameters after three steps, in which `step(model, number)` updates them.
template <class Step>
std::vector<std::vector<float>> trained(net& m, context& c, Step step) {
  initialize(m, 3);
  for (int s = 0; s < 3; ++s) {
    tape steps(c);
    const auto x = eval(randn<float>(extents<4, 5>{}, {.seed = static_cast<std::uint64_t>(s) + 10}));
    steps.backward(steps.eval(mean(square(m(x)))));
    step(s);
  }
  return {m.backbone.weight.to_vector(), m.backbone.bias.to_vector(), m.head.weight.to_vector(),
          m.head.bias.to_vector()};
}

/// What optimizers of their own make of the parameters.
std::vector<std::vector<float>> expected() {
  net m;
  std::map<std::string, adamw> own;
  return trained(m, default_context(), [&](int s) {
    for (const auto& [name, p] : named_parameters(m)) {
      const double lr = s == 2 ? 0.02 : 0.01;
      adamw& of = own[name];
      of.lr = name[0] == 'b' ? lr / 8 : lr;
      of.weight_decay = name.find("bias") == name.npos ? 0.5 : 0;
      update_parameters(of, state_dict_t{{name, p}});
    }
  });
}

}  // namespace

TEST_CASE("each parameter is updated with its own settings, also after a change of those of all") {
  net m;
  parameter_groups optimizer{adamw{.lr = 0.01, .weight_decay = 0.5}, adjust};
  const auto seen = trained(m, default_context(), [&](int s) {
    if (s == 2) optimizer.settings.lr = 0.02;
    optimizer.step(m);
  });
  CHECK(seen == expected());
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
    for (int s = 0; s < 3; ++s) {
      if (s == 2) optimizer.settings.lr = 0.02;
      tape steps(run);
      const auto x = eval(randn<float>(extents<4, 5>{}, {.seed = static_cast<std::uint64_t>(s) + 10}));
      steps.backward(steps.eval(mean(square(m(x)))));
      run.step();
    }
    const state_dict_t all = run.full();
    for (std::size_t i = 0; i < whole.size(); ++i) {
      const auto now = tensor<float, extents<dyn>>(flat_view<float>(all[i].second)).to_vector();
      REQUIRE(now.size() == whole[i].size());
      for (std::size_t j = 0; j < now.size(); ++j)
        CHECK(now[j] == doctest::Approx(whole[i][j]).epsilon(1e-6));
    }
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
