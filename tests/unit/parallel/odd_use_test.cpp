// SPDX-License-Identifier: MIT
// Uses of runs that no example shows: other orders of calls, other moments, other options. Each works, or
// throws an error that says what to do.
#include <doctest/doctest.h>

#include <cmath>

#include <weft/comm/threads.hpp>
#include <weft/parallel/context_parallel.hpp>
#include <weft/parallel/pipeline.hpp>
#include <weft/parallel/tensor_parallel.hpp>
#include <weft/weft.hpp>

#include "../../throws_with.hpp"

using namespace weft;
using weft::test::throws_with;

namespace {

template <class... Axes>
using plan = policy<strategy::mesh<Axes...>>;

auto rows(std::uint64_t seed) { return randn<float>(extents<4, 3>{}, {.seed = seed}); }

/// A model whose head is tied to the token table.
struct tied {
  embedding_table<10, 4> tokens;
  linear_without_bias<4, 10> head;
  auto operator()(expression auto ids) const { return head(tokens(ids)); }
};

struct divided_layers {
  linear<3, 600, divided::columns<>> in;
  linear<600, 2, divided::rows<>> out;
  auto operator()(expression auto x) const { return out(tanh(in(x))); }
};

struct block {
  linear<6, 6> in;
  auto operator()(expression auto x) const {
    return let(x, [this](auto h) { return h + tanh(in(h)); });
  }
};
template <int Blocks>
struct deep {
  linear<3, 6> first;
  repeat<block> blocks{std::vector<block>(Blocks)};
  linear<6, 1> last, other;
  auto operator()(expression auto x) const { return last(blocks(first(x))); }
  auto both(expression auto x) const {
    return let(blocks(first(x)), [this](auto h) { return last(h) + other(h); });
  }
};

template <index_t Width>
struct heads {
  linear<Width, Width> a, b;
};

}  // namespace

TEST_CASE("tied weights under the axis tp train as on one rank") {
  const auto ids =
      generate<std::int32_t>(extents<4>{}, [](index_t i) { return static_cast<std::int32_t>(i); });
  std::vector<double> expected;
  for (int ranks = 1; ranks <= 3; ++ranks)
    for (const bool divides : {false, true}) {
      if (!divides && ranks > 1) continue;
      std::vector<double> losses;
      run_ranks(ranks, [&](communicator& all) {
        tied model;
        model.head.weight = model.tokens.weight;
        initialize(model, 1);
        adamw optimizer{.lr = 1e-2};
        const auto train = [&](auto run) {
          for (int s = 0; s < 4; ++s) {
            const double loss = run.step(1, [&](index_t) { return cross_entropy(model(ids), ids); }).loss;
            if (all.rank() == 0) losses.push_back(loss);
          }
        };
        if (divides) train(bind<plan<tp<>>>(model, optimizer, all));
        else train(bind<>(model, optimizer, all, {}));
      });
      if (expected.empty()) expected = losses;
      REQUIRE(losses.size() == expected.size());
      for (std::size_t s = 0; s < losses.size(); ++s)
        CHECK(losses[s] == doctest::Approx(expected[s]).epsilon(1e-5));
    }
}

TEST_CASE("elements of a divided parameter cannot be updated from outside") {
  const std::vector<std::string> named{"parameter in.weight of shape [600, 3] is divided among ranks",
                                       "run.full()"};
  const auto refuses_under = [&]<class Plan>(Plan) {
    run_ranks(2, [&](communicator& all) {
      divided_layers model;
      initialize(model, 1);
      adamw optimizer;
      auto run = bind<Plan>(model, optimizer, all);
      context outside;
      CHECK(throws_with<value_error>([&] { update(model.in.weight[500], 9.0f, run); }, named));
      CHECK(throws_with<value_error>([&] { update(slice<0>(model.in.weight, 100, 200), 9.0f, outside); },
                                     named));
      CHECK(throws_with<value_error>([&] { update(transpose(model.in.weight), 9.0f, outside); }, named));
      CHECK(throws_with<value_error>([&] { update(model.in.weight, 9.0f, outside); }, named));
      const auto all_of = run.full();
      for (const float e : flat_view<float>(all_of[0].second).to_vector()) CHECK(e != 9);
    });
  };
  refuses_under(plan<tp<>>{});
  refuses_under(plan<fsdp<3>>{});
}

TEST_CASE("an update in a run computes with the parts of layers that ranks have") {
  run_ranks(2, [](communicator& all) {
    divided_layers model;
    initialize(model, 1);
    adamw optimizer;
    auto run = bind<plan<tp<>>>(model, optimizer, all);
    const auto x = rows(1);
    const auto y = eval(model(x), run), updated = eval(y * 0.0f, run), viewed = eval(y * 0.0f, run);
    update(updated, model(x), run);
    update(slice<0>(viewed, 0, y.extents()[0]), model(x), run);
    CHECK(updated.to_vector() == y.to_vector());
    CHECK(viewed.to_vector() == y.to_vector());
  });
}

TEST_CASE("stage 3: what a tape has gathered is neither written nor read from outside") {
  run_ranks(2, [](communicator& all) {
    linear<3, 2> model;
    initialize(model, 1);
    adamw optimizer;
    auto run = bind<plan<fsdp<3>>>(model, optimizer, all);
    const auto before = flat_view<float>(run.full()[1].second).to_vector();
    {
      tape steps(run);
      steps.eval(mean(square(model(rows(1)))));
      CHECK(throws_with<value_error>([&] { update(model.bias, 3.0f, run); }, {"parameter bias"}));
      CHECK(
          throws_with<value_error>([&] { update(model.bias, model.bias * 2.0f, run); }, {"parameter bias"}));
      CHECK(throws_with<value_error>([&] { model.bias.mutable_data(); }, {"parameter bias"}));
    }
    CHECK(flat_view<float>(run.full()[1].second).to_vector() == before);
    run.step(1, [&](index_t) { return mean(square(model(rows(1)))); });
  });
}

TEST_CASE("what join() says after a step that failed counts in the next one") {
  for (const bool fails : {false, true})
    run_ranks(2, [&](communicator& all) {
      linear<1, 1> model;
      initialize(model, 1);
      sgd optimizer{.lr = 0.1};
      auto run = bind<plan<dp>>(model, optimizer, all);
      struct no_data {};
      if (fails) {
        run.join(true);
        CHECK_THROWS_AS(run.step(1,
                                 [&](index_t) {
                                   throw no_data{};
                                   return sum(square(model.weight));
                                 }),
                        no_data);
        // join() in the loss
        CHECK_THROWS_AS(run.step(1,
                                 [&](index_t) {
                                   run.join(true);
                                   throw no_data{};
                                   return sum(square(model.weight));
                                 }),
                        no_data);
        const double loss =
            run.step(1,
                     [&](index_t) {
                       run.join(all.rank() == 0);
                       return (sum(model.weight) + sum(model.bias)) * 0.0f + (all.rank() ? 100.0f : 1.0f);
                     })
                .loss;
        CHECK(loss == doctest::Approx(1));
      }
      for (const double weight : {1.0, 0.5}) {  // rank 1 has no batch, then both have
        const bool has_batch = all.rank() == 0 || weight < 1;
        run.join(has_batch);
        const double loss =
            run.step(1,
                     [&](index_t) {
                       return (sum(model.weight) + sum(model.bias)) * 0.0f + (all.rank() ? 100.0f : 1.0f);
                     })
                .loss;
        CHECK(loss == doctest::Approx(weight < 1 ? 50.5 : 1));
      }
    });
}

TEST_CASE("a mesh of the axis pp alone is a pipeline of all ranks") {
  run_ranks(2, [](communicator& all) {
    deep<2> model;
    initialize(model, 1);
    adamw optimizer;
    auto run = bind<plan<pp<>>>(model, optimizer, all);
    static_assert(pipelined<decltype(run)>);
    run.step(4, [&](index_t j) { return mean(square(model(rows(static_cast<std::uint64_t>(j))))); });
    CHECK(run.micro_batch(1, 4) == 1);
    CHECK(run.sent_by_axis()[static_cast<std::size_t>(mesh_axis::pp)] > 0);
  });
}

TEST_CASE("a pipeline computes nothing else while it computes a loss") {
  run_ranks(3, [](communicator& all) {
    deep<3> model;
    initialize(model, 1);
    sgd optimizer{.lr = 0.1};
    parallel_options o = plan<pp<>>::strategy_type::options({.pp = 3});
    o.timeout = std::chrono::seconds(60);
    auto run = bind<plan<pp<>>>(model, optimizer, all, o);
    const auto teacher = run.eval(mean(model(rows(7))));
    CHECK(std::isfinite(teacher.item()));
    CHECK(throws_with<std::exception>(
        [&] {
          run.step(3, [&](index_t j) {
            const auto y = eval(model(rows(static_cast<std::uint64_t>(j))), run);
            return mean(square(model(rows(static_cast<std::uint64_t>(j))) - y));
          });
        },
        {"inside a loss", "call it before the step"}));
  });
}

TEST_CASE("a pipeline is evaluated before its first step, whatever its schedule") {
  run_ranks(2, [](communicator& all) {
    deep<4> model;
    initialize(model, 1);
    adamw optimizer;
    auto run = bind<plan<pp<pipeline::dual_pipe_v>>>(model, optimizer, all);
    CHECK(std::isfinite(run.eval(mean(model(rows(1)))).item()));
    CHECK(std::isfinite(run.step(4, [&](index_t) { return mean(square(model(rows(2)))); }).loss));
  });
  run_ranks(2, [](communicator& all) {
    deep<2> model;
    initialize(model, 1);
    adamw optimizer;
    const auto of_three = [](int stages, int micro_batches) {
      if (micro_batches != 3) throw usage_error("three micro-batches");
      return pipeline::one_f_one_b(stages, micro_batches);
    };
    auto run = bind<plan<pp<>>>(model, optimizer, all, mesh_sizes{.pp = 2}, {.schedule = of_three});
    CHECK(throws_with<usage_error>([&] { run.eval(mean(model(rows(1)))); },
                                   {"call run.prepare(loss, micro_batches)"}));
    run.prepare(mean(model(rows(1))), 3);
    CHECK(std::isfinite(run.eval(mean(model(rows(1)))).item()));
  });
}

TEST_CASE(
    "a parameter that the statement by which a pipeline was divided does not read is named with the cure") {
  run_ranks(2, [](communicator& all) {
    deep<2> model;
    initialize(model, 1);
    adamw optimizer;
    auto run = bind<plan<pp<>>>(model, optimizer, all);
    run.step(2, [&](index_t) { return mean(square(model(rows(1)))); });
    CHECK(throws_with<std::exception>(
        [&] { run.step(2, [&](index_t) { return mean(square(model.both(rows(1)))); }); },
        {"parameter other.weight of shape [1, 6] is held by another stage of the pipeline", "run.prepare"}));
  });
  run_ranks(2, [](communicator& all) {
    deep<2> model;
    initialize(model, 1);
    adamw optimizer;
    auto run = bind<plan<pp<>>>(model, optimizer, all);
    run.prepare(mean(model.both(rows(1))), 2);
    run.step(2, [&](index_t) { return mean(square(model(rows(1)))); });
    run.step(2, [&](index_t) { return mean(square(model.both(rows(1)))); });
  });
}

TEST_CASE("a gradient that a run has is not undefined in silence") {
  run_ranks(2, [](communicator& all) {
    linear<3, 2> model;
    initialize(model, 1);
    adamw optimizer;
    auto run = bind<plan<dp>>(model, optimizer, all);
    CHECK(!model.weight.grad().defined());
    tape steps(run);
    steps.backward(steps.eval(mean(square(model(rows(1))))));
    CHECK(throws_with<usage_error>([&] { model.weight.grad(); },
                                   {"grad: the gradient of a parameter", "run.step()"}));
    run.step();
  });
}

TEST_CASE("ranks that compute the same gradients in another order agree") {
  const auto train = [](auto width, int micro_batches, bool together) {
    run_ranks(2, [&](communicator& all) {
      heads<width> model;
      initialize(model, 1);
      sgd optimizer{.lr = 0.1};
      auto run = bind<plan<dp>>(model, optimizer, all);
      const auto x = ones<float>(extents<2, width>{});
      for (int s = 0; s < 3; ++s) {
        for (int j = 0; j < micro_batches; ++j) {
          const auto quiet = run.no_sync(j + 1 < micro_batches);
          tape steps(run);
          const auto& first = (all.rank() + j) % 2 ? model.a : model.b;
          const auto& second = (all.rank() + j) % 2 ? model.b : model.a;
          if (together) {
            const auto y = steps.eval(mean(square(first(x)))), z = steps.eval(mean(square(second(x))));
            steps.backward(steps.eval(y + z));
          } else {
            steps.backward(steps.eval(mean(square(first(x)))));
          }
        }
        run.step({.micro_batches = micro_batches});
      }
      const auto a = flat_view<float>(run.full()[0].second).to_vector();
      std::vector<float> sum = a;
      all.all_reduce(sum).wait();
      std::vector<float> twice;
      for (const float e : a) twice.push_back(2 * e);
      CHECK(sum == twice);
    });
  };
  train(std::integral_constant<index_t, 6>{}, 1, true);
  train(std::integral_constant<index_t, 600>{}, 1, true);
  train(std::integral_constant<index_t, 600>{}, 2, true);
  train(std::integral_constant<index_t, 600>{}, 2, false);
}

TEST_CASE("meshes take options") {
  const auto trains = [&]<class Plan>(Plan, const mesh_sizes& sizes) {
    run_ranks(4, [&](communicator& all) {
      divided_layers model;
      initialize(model, 1);
      adamw optimizer;
      parallel_options o = Plan::strategy_type::options(sizes);
      o.timeout = std::chrono::seconds(77);
      auto run = bind<Plan>(model, optimizer, all, o);
      CHECK(run.options().timeout == std::chrono::seconds(77));
      CHECK(run.options().divide == Plan::strategy_type::options(sizes).divide);
      const auto train = [&](auto& of, auto& with) {
        std::vector<double> losses;
        for (int k = 0; k < 3; ++k)
          losses.push_back(of.step(1, [&](index_t) { return mean(square(with(rows(1)))); }).loss);
        return losses;
      };
      divided_layers same;
      initialize(same, 1);
      adamw of_same;
      auto by_sizes = bind<Plan>(same, of_same, all, sizes);
      CHECK(train(run, model) == train(by_sizes, same));
      CHECK(run.sent_by_axis() == by_sizes.sent_by_axis());
      if (sizes.dp == 1 || sizes.fsdp > 1)  // the default: all ranks along dp, and nothing sharded
        CHECK(throws_with<usage_error>([&] { bind<Plan>(model, optimizer, all, parallel_options{}); },
                                       {"weft: bind: "}));
      o.stages = 2;
      CHECK(throws_with<usage_error>([&] { bind<Plan>(model, optimizer, all, o); },
                                     {"2 stages need a policy with"}));
    });
  };
  trains(plan<dp, tp<>>{}, {.dp = 2, .tp = 2});
  trains(plan<fsdp<3>, tp<>>{}, {.fsdp = 2, .tp = 2});
  trains(plan<tp<>>{}, {.tp = 4});
  trains(plan<dp, fsdp<2>>{}, {.dp = 2, .fsdp = 2});
}
