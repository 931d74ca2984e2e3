// SPDX-License-Identifier: MIT
// copy_weights and lerp_weights: by name, each tied tensor once, with nothing written if anything differs.
#include <doctest/doctest.h>

#include <vector>

#include <weft/comm/threads.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/weft.hpp>

#include "../../elements.hpp"
#include "../../throws_with.hpp"

using namespace weft;
using weft::test::elements_of;
using weft::test::throws_with;

namespace {
struct net {
  linear<3, 4> hidden;
  batch_normalization<4> norm;
  linear<4, 2> output;
  auto operator()(expression auto x) const { return output(norm(hidden(x))); }
};
struct wider {
  linear<3, 4> hidden;
  batch_normalization<4> norm;
  linear<4, 3> output;
};
struct headless {
  linear<3, 4> hidden;
  batch_normalization<4> norm;
};
struct tied {
  linear<4, 4> first, second = first;
};
struct halves {
  parameter<extents<5>, bfloat16> scale =
      make_parameter<bfloat16>(extents<5>{}, {initializer::distribution::normal, 1.0});
};
net made(std::uint64_t seed) {
  net m;
  initialize(m, seed);
  update(m.norm.num_batches_tracked, static_cast<std::int64_t>(seed));
  return m;
}
}  // namespace

TEST_CASE("copy_weights: parameters and buffers of another model, by name") {
  const net a = made(1), b = made(2);
  const auto before = a.hidden.weight.state();
  copy_weights(a, b);
  CHECK(elements_of(state_dict(a)) == elements_of(state_dict(b)));
  CHECK(a.hidden.weight.state() == before);
  CHECK(a.norm.num_batches_tracked.item() == 2);
  state_dict_t reversed = state_dict(made(3));
  std::reverse(reversed.begin(), reversed.end());
  copy_weights(a, reversed);
  CHECK(elements_of(state_dict(a)) == elements_of(state_dict(made(3))));
  copy_weights(state_dict(a), b);
  CHECK(elements_of(state_dict(a)) == elements_of(state_dict(b)));
}

TEST_CASE("copy_weights: what differs is an error that names it, and nothing is copied") {
  const net a = made(1), b = made(2);
  const auto before = elements_of(state_dict(a));
  CHECK(throws_with<value_error>([&] { copy_weights(a, wider{}); },
                                 {"copy_weights: output.weight", "f32 [2, 4]", "f32 [3, 4]"}));
  CHECK(throws_with<value_error>([&] { copy_weights(a, headless{}); }, {"source has no output.weight"}));
  CHECK(throws_with<value_error>([&] { copy_weights(headless{}, a); }, {"target has no output.weight"}));
  CHECK(throws_with<value_error>([&] { lerp_weights(a, wider{}, 0.5); }, {"lerp_weights: output.weight"}));
  CHECK(elements_of(state_dict(a)) == before);
}

TEST_CASE("copy_weights: an expression written before sees the change") {
  const net a = made(1), b = made(2);
  const auto x = randn<float>(extents<2, 3>{}, {.seed = 1});
  const auto y = a.hidden(x);
  copy_weights(a, b);
  CHECK_THROWS_AS(eval(y), value_error);
}

TEST_CASE("copy_weights, lerp_weights: tied tensors once") {
  const tied to, from;
  copy_weights(to, from);
  CHECK(to.second.weight.to_vector() == from.first.weight.to_vector());
  copy_weights(
      to, state_dict_t{{"first.weight", from.first.weight.state()}, {"first.bias", from.first.bias.state()}});
  const tied halfway = clone(to);
  update(to.first.weight, halfway.first.weight + 1);
  lerp_weights(halfway, to, 0.5);
  CHECK(eval(amax(abs(halfway.second.weight - to.first.weight + 0.5f))).item() < 1e-6f);
}

TEST_CASE("lerp_weights: floating tensors move, integers are copied") {
  const net a = made(1), b = made(2);
  const auto expected = eval(a.output.weight * 0.75f + b.output.weight * 0.25f).to_vector();
  lerp_weights(a, b, 0.25);
  CHECK(a.output.weight.to_vector() == expected);
  CHECK(a.norm.num_batches_tracked.item() == 2);
  lerp_weights(a, b, 1);
  CHECK(elements_of(state_dict(a)) == elements_of(state_dict(b)));
  const halves h, k;
  const auto low = eval(cast<bfloat16>(cast<float>(h.scale) * 0.5f + cast<float>(k.scale) * 0.5f));
  lerp_weights(h, k, 0.5);
  CHECK(elements_of(*h.scale.state()) == elements_of(*low.state()));
}

TEST_CASE("copy_weights of bound models on two ranks") {
  for (const sharding divide :
       {sharding::none, sharding::optimizer, sharding::gradients, sharding::parameters}) {
    CAPTURE(static_cast<int>(divide));
    run_ranks(2, [&](communicator& ranks) {
      const device where(std::make_shared<cpu::cpu_backend>(1));
      const auto train = [&](auto& run, const net& m) {
        tape steps(run);
        const auto x = randn<float>(extents<8, 3>{}, {.seed = 1}, where);
        steps.backward(steps.eval(mean(square(m(x)))));
        run.step();
      };
      net model = made(1), other = made(2);
      to(model, where), to(other, where);
      const net start = clone(other);
      sgd optimizer{.lr = 0.1}, its;
      auto run = bind(model, optimizer, ranks, {.divide = divide});
      train(run, model);
      copy_weights(other, run.full());
      CHECK(elements_of(state_dict(other)) != elements_of(state_dict(start)));
      if (divide == sharding::parameters) {
        CHECK(throws_with<usage_error>([&] { copy_weights(model, start); },
                                       {"hidden.weight", "divided among ranks", "run.full()"}));
        CHECK(throws_with<value_error>([&] { copy_weights(start, model); }, {"hidden.weight", "run.full()"}));
        return;
      }
      copy_weights(model, start);
      CHECK(elements_of(state_dict(model)) == elements_of(state_dict(start)));
      net alone = clone(start);
      auto single = bind<policy<strategy::single>>(alone, its = {.lr = 0.1});
      train(run, model);
      train(single, alone);
      const auto all = run.full();
      const auto a = elements_of(all), b = elements_of(single.full());
      float most = 0;
      for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
      CHECK(most < 1e-5f);
    });
  }
}
