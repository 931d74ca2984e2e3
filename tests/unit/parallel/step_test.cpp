// SPDX-License-Identifier: MIT
// A training step in one call against a hand-written loop: bitwise identical, with the same calls of the
// loss.
#include <stdexcept>
#include <thread>

#include <weft/nn/clone.hpp>

#include "../../late_communicator.hpp"
#include "training.hpp"

using namespace training;

namespace {

/// Like `train`, with run.step(m, loss).
outcome train_by_step(communicator& ranks, const parallel_options& o, index_t per_rank, int steps) {
  const device where = one_thread();
  net model = net::create(where);
  initialize(model, 5);
  adamw optimizer{.lr = 1e-2};
  auto run = bind<>(model, optimizer, ranks, o);
  run.seed = 3;
  outcome result;
  const index_t total = per_rank * ranks.size();
  for (int s = 0; s < steps; ++s) {
    index_t called = 0;
    const step_result r =
        run.step(per_rank,
                 [&](index_t j) {
                   CHECK(j == called++);
                   const index_t g = s * total + run.micro_batch(j, per_rank);
                   return cross_entropy(model(batch_of(g, where, 0)), batch_of(g, where, 1));
                 },
                 {.clip = 0.5});
    CHECK(called == per_rank);
    result.losses.push_back(r.loss);
    result.norms.push_back(r.norm);
    result.sent = {r.sent.of(collective::all_reduce), r.sent.of(collective::reduce_scatter),
                   r.sent.of(collective::all_gather)};
  }
  result.parameters = elements_of(run.full());
  return result;
}

}  // namespace

TEST_CASE("step(m, loss) is the loop by hand, under every strategy") {
  for (const int n : {1, 2, 3})
    for (const sharding stage : stages)
      for (const index_t per_rank : {1, 3}) {
        const parallel_options o{.divide = stage};
        std::vector<outcome> by_step(static_cast<std::size_t>(n)), by_hand = by_step;
        run_ranks(n, [&](communicator& ranks) {
          by_hand[static_cast<std::size_t>(ranks.rank())] = train<>(ranks, o, per_rank, 3);
        });
        run_ranks(n, [&](communicator& ranks) {
          by_step[static_cast<std::size_t>(ranks.rank())] = train_by_step(ranks, o, per_rank, 3);
        });
        for (std::size_t r = 0; r < by_step.size(); ++r) {
          INFO("rank " << r << " of " << n << ", stage " << static_cast<int>(stage) << ", " << per_rank
                       << " micro-batches");
          CHECK(by_step[r].losses == by_hand[r].losses);
          CHECK(by_step[r].norms == by_hand[r].norms);
          CHECK(by_step[r].parameters == by_hand[r].parameters);
          CHECK(by_step[r].sent == by_hand[r].sent);
        }
      }
}

TEST_CASE("a setting that is refused leaves the step to be taken, under every strategy") {
  for (const sharding stage : stages)
    for (const int n : {1, 2})
      run_ranks(n, [&](communicator& ranks) {
        const auto norm_of = [&](bool fails) {
          const device where = one_thread();
          net model = net::create(where);
          initialize(model, 5);
          sgd optimizer{.lr = 0.1};
          auto run = bind<>(model, optimizer, ranks, {.divide = stage});
          tape steps(run);
          steps.backward(steps.eval(cross_entropy(model(batch_of(0, where, 0)), batch_of(0, where, 1))));
          if (fails) {
            optimizer.lr = -1;
            CHECK_THROWS_AS(run.step(), value_error);
            CHECK_THROWS_AS(run.step(1,
                                     [&](index_t) {
                                       return cross_entropy(model(batch_of(0, where, 0)),
                                                            batch_of(0, where, 1));
                                     }),
                            value_error);
            optimizer.lr = 0.1;
          }
          return static_cast<double>(run.step());
        };
        CHECK(norm_of(true) == norm_of(false));
      });
}

TEST_CASE("step(m, loss): after a loss that throws, the next step begins anew") {
  for (const sharding stage : stages)
    run_ranks(2, [&](communicator& ranks) {
      const auto norm_of = [&](bool fails) {
        const device where = one_thread();
        net model = net::create(where);
        initialize(model, 5);
        sgd optimizer{.lr = 0.1};
        auto run = bind<>(model, optimizer, ranks, {.divide = stage});
        const auto loss = [&](index_t j) {
          if (fails && j == 2) throw std::runtime_error("a bad label");
          return cross_entropy(model(batch_of(j, where, 0)), batch_of(j, where, 1));
        };
        if (fails) CHECK_THROWS_AS(run.step(3, loss), std::runtime_error);
        fails = false;
        return static_cast<double>(run.step(3, loss).norm);
      };
      CHECK(norm_of(true) == norm_of(false));
    });
}

TEST_CASE("zero_grad of a run drops what was not reduced: after a failure, and of another run's pass") {
  for (const sharding stage : stages)
    run_ranks(2, [&](communicator& ranks) {
      const device where = one_thread();
      const auto norm_of = [&](int before) {
        net model = net::create(where), other = net::create(where);
        initialize(model, 5);
        initialize(other, 6);
        sgd optimizer{.lr = 0.1}, of_other;
        auto run = bind<>(model, optimizer, ranks, {.divide = stage});
        auto run_of_other = bind<>(other, of_other, ranks, {.divide = stage});
        const auto loss = [&](const net& m) {
          return cross_entropy(m(batch_of(0, where, 0)), batch_of(0, where, 1));
        };
        bool fails = true;  // as long as the hook
        if (before == 1) {
          model.last.weight.on_gradient([&](const auto&) {
            if (fails) throw std::runtime_error("a hook");
          });
          tape steps(run);
          const auto value = steps.eval(loss(model));
          CHECK_THROWS_AS(steps.backward(value), std::runtime_error);
          fails = false;
          run.zero_grad();
        }
        if (before == 2) {
          tape steps(run_of_other);
          steps.backward(steps.eval(loss(other) + loss(model)));
          run_of_other.step();
          run.zero_grad();
        }
        run.begin_micro_batch(0, 0);  // the same random numbers
        tape steps(run);
        steps.backward(steps.eval(loss(model)));
        return static_cast<double>(run.step());
      };
      const double expected = norm_of(0);
      CHECK(norm_of(1) == doctest::Approx(expected));
      if (stage != sharding::parameters) CHECK(norm_of(2) == doctest::Approx(expected));
    });
}

TEST_CASE("a model has its trained parameters when its run ends") {
  for (const sharding stage : {sharding::none, sharding::optimizer, sharding::gradients})
    run_ranks(3, [&](communicator& ranks) {
      const device where = one_thread();
      net model = net::create(where);
      initialize(model, 5);
      std::vector<float> expected;
      for (const bool reads : {true, false}) {
        sgd optimizer{.lr = 0.1};
        net trained = clone(model);
        {
          auto run = bind<>(trained, optimizer, ranks, {.divide = stage});
          run.step(1, [&](index_t) {
            return cross_entropy(trained(batch_of(0, where, 0)), batch_of(0, where, 1));
          });
          if (reads) expected = elements_of(run.full());
        }
        CHECK(elements_of(named_parameters(trained)) == expected);
      }
    });
}

TEST_CASE("parameters whose new rows have not arrived when their run ends are not read") {
  run_ranks(2, [&](communicator& all) {
    test::late_communicator ranks(all);  // the rows that a step sends are in flight until waited for
    const device where = one_thread();
    net model = net::create(where);
    initialize(model, 5);
    sgd optimizer{.lr = 0.1};
    {
      auto run = bind<>(model, optimizer, ranks, {.divide = sharding::optimizer});
      const auto loss = [&](index_t) {
        return cross_entropy(model(batch_of(0, where, 0)), batch_of(0, where, 1));
      };
      run.step(1, loss);
      if (all.rank() == 0) all.abort("rank 0 gives up");
      while (!all.failure()) std::this_thread::yield();
    }
    int lost = 0;
    for (const auto& [name, p] : named_parameters(model)) try {
        (void)elements_of({{name, p}});
      } catch (const comm_error& e) {
        ++lost;
        CHECK(std::string(e.what()).find("weft: parameter " + name + " is out of date") == 0);
      }
    CHECK(lost > 0);
  });
}

TEST_CASE("step(m, loss): what is wrong is said, and nothing has changed") {
  const device where = one_thread();
  net model = net::create(where);
  initialize(model, 5);
  sgd optimizer;
  self_communicator alone;
  auto run = bind<>(model, optimizer, alone, {});
  const auto before = elements_of(run.full());
  index_t called = 0;
  const auto loss = [&](index_t) {
    ++called;
    return cross_entropy(model(batch_of(0, where, 0)), batch_of(0, where, 1));
  };
  CHECK_THROWS_WITH_AS(run.step(0, loss), "weft: step: 0 micro-batches", value_error);
  CHECK_THROWS_AS(run.step(1, loss, {.clip = -1}), value_error);
  CHECK(called == 0);
  CHECK(elements_of(run.full()) == before);
}

TEST_CASE("a loop by hand: ranks draw different numbers, those of one rank are not affected") {
  constexpr int ranks_of = 3;
  std::vector<std::vector<float>> drawn(ranks_of * 3), alone(3);
  const auto draw = [](communicator& ranks, auto& to) {
    const device where = one_thread();
    net model = net::create(where);
    sgd optimizer;
    auto run = bind<policy<strategy::data_parallel>>(model, optimizer, ranks);
    const auto x = ones<float>(extents<40>{}, where);
    for (const int way : {0, 1, 2}) {  // as bound; a step that is named; another one
      if (way > 0) run.begin_step(static_cast<std::uint64_t>(way));
      to[static_cast<std::size_t>(ranks.rank() * 3 + way)] = eval(dropout(x, 0.5f), run).to_vector();
    }
  };
  run_ranks(ranks_of, [&](communicator& ranks) { draw(ranks, drawn); });
  run_ranks(1, [&](communicator& ranks) { draw(ranks, alone); });
  for (std::size_t i = 0; i < drawn.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) CHECK(drawn[i] != drawn[j]);
  for (std::size_t i = 0; i < alone.size(); ++i) CHECK(drawn[i] == alone[i]);
}
