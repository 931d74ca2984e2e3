// SPDX-License-Identifier: MIT
// Ranks with different numbers of batches, and offloaded parameters and optimizer state.
#include "training.hpp"

#include <filesystem>

#include <weft/device/cpu/file.hpp>

using namespace training;

namespace {

/// The losses of the steps of two epochs, in which rank r has a batch while step < counts[r].
std::vector<double> joined(const std::vector<int>& counts, const parallel_options& o) {
  const int n = static_cast<int>(counts.size());
  std::vector<std::vector<double>> of(counts.size());
  run_ranks(n, [&](communicator& ranks) {
    const device where(std::make_shared<cpu::cpu_backend>(1));
    net model = net::create(where);
    initialize(model, 5);
    adamw optimizer{.lr = 1e-2};
    auto run = bind(model, optimizer, ranks, o);
    index_t batch = 0;
    for (int epoch = 0; epoch < 2; ++epoch)
      for (int s = 0; run.join(s < counts[static_cast<std::size_t>(ranks.rank())]) > 0; ++s) {
        const bool mine = s < counts[static_cast<std::size_t>(ranks.rank())];
        if (mine) batch = s * n + ranks.rank();
        run.begin_micro_batch(static_cast<std::uint64_t>(s), static_cast<std::uint64_t>(ranks.rank()));
        tape steps(run);
        const auto loss =
            steps.eval(cross_entropy(model(batch_of(batch, where, 0)), batch_of(batch, where, 1)));
        steps.backward(loss);
        std::vector<double> sum{mine ? static_cast<double>(loss.item()) : 0};
        ranks.all_reduce(sum, reduction::sum, {.control = true}).wait();
        of[static_cast<std::size_t>(ranks.rank())].insert(of[static_cast<std::size_t>(ranks.rank())].end(),
                                                          {sum[0], run.step({.clip = 0.5})});
      }
  });
  for (const auto& one : of) CHECK(one == of[0]);
  return of[0];
}

/// The same on one rank, which takes all existing batches.
std::vector<double> alone(const std::vector<int>& counts) {
  const device where(std::make_shared<cpu::cpu_backend>(1));
  net model = net::create(where);
  initialize(model, 5);
  adamw optimizer{.lr = 1e-2};
  self_communicator self;
  auto run = bind(model, optimizer, self, {.deterministic = true});
  std::vector<double> result;
  const int n = static_cast<int>(counts.size()), most = *std::max_element(counts.begin(), counts.end());
  for (int step = 0; step < 2 * most; ++step) {
    const int s = step % most;
    index_t present = 0;
    double sum = 0;
    for (int r = 0; r < n; ++r) {
      if (s >= counts[static_cast<std::size_t>(r)]) continue;
      run.begin_micro_batch(static_cast<std::uint64_t>(s), static_cast<std::uint64_t>(r));
      tape steps(run);
      const auto loss =
          steps.eval(cross_entropy(model(batch_of(s * n + r, where, 0)), batch_of(s * n + r, where, 1)));
      steps.backward(loss);
      sum += static_cast<double>(loss.item());
      ++present;
    }
    result.insert(result.end(), {sum, run.step({.clip = 0.5, .micro_batches = present})});
  }
  return result;
}

struct two_layers {
  linear<3, 4> first;
  linear<4, 4> second;
};
/// The message of the E that each rank throws in `f(rank, run, model, optimizer)`; empty if none.
template <class E, class F>
std::vector<std::string> refusals(int ranks_of_run, const parallel_options& o, F f) {
  std::vector<std::string> said(static_cast<std::size_t>(ranks_of_run));
  run_ranks(ranks_of_run, [&](communicator& ranks) {
    two_layers model;
    initialize(model, 2);
    sgd optimizer{.lr = 0.1};
    auto run = bind(model, optimizer, ranks, o);
    try {
      f(ranks.rank(), run, model);
    } catch (const E& e) { said[static_cast<std::size_t>(ranks.rank())] = e.what(); }
  });
  return said;
}
/// A backward pass, through only the second layer unless `both` are used.
template <class Run>
void differentiate(Run& run, const two_layers& model, bool both = true) {
  const auto x = full<float>(extents<5, 3>{}, 0.5f);
  tape steps(run);
  if (both) steps.backward(steps.eval(mean(square(model.second(model.first(x))))));
  else steps.backward(steps.eval(mean(square(model.second(full<float>(extents<5, 4>{}, 0.25f))))));
}

struct folder {
  std::filesystem::path path = std::filesystem::temp_directory_path() / "weft-offload-test";
  folder() { std::filesystem::create_directories(path); }
  ~folder() { std::filesystem::remove_all(path); }
};

}  // namespace

TEST_CASE("ranks with fewer batches take part until the last has none") {
  const std::vector<int> counts{3, 6, 1, 4};
  const std::vector<double> expected = alone(counts);
  for (sharding stage : stages) {
    const std::vector<double> got = joined(counts, {.divide = stage});
    REQUIRE(got.size() == expected.size());
    CHECK(largest_relative_difference(got, expected) < 1e-4);
  }
  CHECK(largest_relative_difference(joined(counts, {.divide = sharding::parameters, .shard_ranks = 2}),
                                    expected) < 1e-4);
}

TEST_CASE("batches of weight 0: the mean loss, local steps, and another number of calls") {
  run_ranks(3, [](communicator& ranks) {
    two_layers model;
    initialize(model, 2);
    sgd optimizer{.lr = 0};
    auto run = bind(model, optimizer, ranks, {});
    const auto x = full<float>(extents<5, 4>{}, 0.25f);
    const auto loss = [&](index_t) { return mean(square(model.second(x))); };
    const double whole = run.step(2, loss).loss;
    run.join(ranks.rank() == 0);
    run.join(ranks.rank() != 1);
    CHECK(run.step(2, loss).loss == doctest::Approx(whole));
    run.join(true);
    CHECK_THROWS_WITH_AS(run.step(2, loss), "weft: step: join() was called 1 times for 2 micro-batches",
                         usage_error);
  });
  std::vector<double> moved;
  for (const bool joins : {false, true})
    run_ranks(2, [&](communicator& ranks) {
      two_layers model;
      initialize(model, 2);
      sgd optimizer{.lr = 0.1};
      auto run = bind(model, optimizer, ranks, {.local_steps = 4});
      if (joins) run.join(true);
      const auto before = model.second.weight.to_vector();
      differentiate(run, model);
      run.step();
      if (ranks.rank() == 0) moved.push_back(model.second.weight(0, 0) - before[0]);
    });
  CHECK(moved[0] == moved[1]);
  CHECK(moved[0] != 0);
  run_ranks(3, [](communicator& ranks) {  // the mean of losses is over all ranks, also with local steps
    two_layers model;
    initialize(model, 2);
    adamw optimizer{.lr = 1e-5};
    auto run = bind(model, optimizer, ranks, {.local_steps = 100});
    const auto loss = [&](index_t) {
      return mean(square(model.second(model.first(ones<float>(extents<5, 3>{})))));
    };
    const double first = run.step(1, loss).loss;
    run.join(ranks.rank() != 1);
    const auto before = model.second.weight.to_vector();
    const double second = run.step(1, loss).loss;
    CHECK((model.second.weight.to_vector() == before) == (ranks.rank() == 1));
    CHECK(second == doctest::Approx(first).epsilon(1e-3));
  });
}

TEST_CASE("join: statistics of batches are those of a rank that has had the most") {
  struct net {
    linear<3, 4> in;
    batch_normalization<4> norm;
  };
  const std::vector<int> counts{1, 4, 2};
  std::vector<std::vector<float>> means(4);  // of three ranks, and of one
  for (const int n : {3, 1})  // one rank: the batches that are seen, as rank 0 is the first in the first step
    run_ranks(n, [&](communicator& ranks) {
      const int rank = n == 1 ? 1 : ranks.rank();
      net model;
      initialize(model, 2);
      sgd optimizer{.lr = 0};
      auto run = bind(model, optimizer, ranks, {});
      for (int s = 0; run.join(s < counts[static_cast<std::size_t>(rank)]) > 0; ++s) {
        const auto x = randn<float>(
            extents<5, 3>{}, {.seed = static_cast<std::uint64_t>(n == 1 && s == 0 ? 0 : 10 * rank + s)});
        run.step(1, [&](index_t) { return mean(square(model.norm(model.in(x)))); });
      }
      CHECK(model.norm.num_batches_tracked.item() == 4);
      means[static_cast<std::size_t>(n == 1 ? 3 : rank)] = model.norm.running_mean.to_vector();
    });
  for (const std::vector<float>& m : means) CHECK(m == means[3]);
}

TEST_CASE("norms of gradients are read before the step") {
  for (const int n : {1, 2})
    run_ranks(n, [](communicator& ranks) {
      two_layers model;
      initialize(model, 2);
      sgd optimizer{.lr = 0.1};
      auto run = bind(model, optimizer, ranks, {});
      for (int step = 0; step < 2; ++step) {
        differentiate(run, model);
        const double norm = run.gradient_norm();
        run.before_update([&] { CHECK(run.gradient_norm() == norm); });
        CHECK(run.step() == doctest::Approx(norm / ranks.size()));
        CHECK_THROWS_WITH_AS(run.gradient_norm(), doctest::Contains("weft: gradient_norm: no backward pass"),
                             usage_error);
        CHECK_THROWS_WITH_AS(run.gradient_inf_norm(), doctest::Contains("call gradient_inf_norm() before"),
                             usage_error);
      }
    });
}

TEST_CASE("join: each micro-batch counts or not by itself, before the step and in its loss") {
  const auto x =
      generate<float>(extents<5, 4>{}, [](index_t i) { return static_cast<float>(i * 7 % 11) / 5; });
  const auto step = [&](communicator& ranks, index_t m, int joins) {
    two_layers model;
    initialize(model, 2);
    sgd optimizer{.lr = 0};
    auto run = bind(model, optimizer, ranks, {});
    // three batches: ranks.size() of two ranks have 0, 1 and 2
    const index_t own = ranks.size() == 1 ? 3 : ranks.rank() == 0 ? 2 : 1, first = ranks.rank() == 0 ? 0 : 2;
    if (joins == 1)
      for (index_t j = 0; j < m; ++j) run.join(j < own);
    const step_result r = run.step(m, [&](index_t j) {
      if (joins == 2) run.join(j < own);
      return mean(square(model.second(x * static_cast<float>(1 + first + std::min(j, own - 1)))));
    });
    return std::pair(r.loss, static_cast<double>(r.norm));
  };
  std::pair<double, double> expected;
  run_ranks(1, [&](communicator& ranks) { expected = step(ranks, 3, 0); });
  for (const int joins : {1, 2})
    run_ranks(2, [&](communicator& ranks) {
      const auto [loss, norm] = step(ranks, 2, joins);
      CHECK(loss == doctest::Approx(expected.first));
      CHECK(norm == doctest::Approx(expected.second));
    });
}

TEST_CASE("a parameter that only some ranks use, and other numbers of micro-batches, are refused by name") {
  for (const sharding stage : stages)
    for (const int n : {2, 3}) {
      const parallel_options o{.divide = stage, .unit = [](const std::string&) { return "all"; }};
      for (const int without : {0, n - 1}) {
        const auto said = refusals<error>(n, o, [&](int rank, auto& run, auto& model) {
          differentiate(run, model);
          run.step();
          differentiate(run, model, rank != without);
          run.step();
        });
        const std::string with = without == 0 ? "1" : "0";
        for (const std::string& s : said)
          if (stage == sharding::parameters) CHECK(s != "");  // parameters that are read are gathered, or not
          else
            CHECK(s == "weft: step: parameter first.weight has a gradient on rank " + with +
                           " and none on rank " + std::to_string(without) +
                           ": the losses of ranks that process different data must read the same parameters; "
                           "add 0 times its sum to the loss that does not");
      }
      for (const std::string& s : refusals<usage_error>(n, o, [&](int rank, auto& run, auto& model) {
             const bool sends_each = stage == sharding::gradients || stage == sharding::parameters;
             for (int j = sends_each ? rank : 0; j <= rank; ++j) {
               const auto quiet = run.no_sync(j < rank);
               differentiate(run, model);
             }
             run.step({.micro_batches = rank + 1});
           }))
        CHECK(s.starts_with("weft: step: rank 0 has 1 micro-batches and rank 1 has 2: ranks that process"));
      if (stage != sharding::gradients && stage != sharding::parameters)
        for (const std::string& s : refusals<usage_error>(n, o, [&](int rank, auto& run, auto& model) {
               for (int j = rank == 1; j < 2; ++j) {
                 const auto quiet = run.no_sync(j < 1);
                 differentiate(run, model);
               }
               run.step({.micro_batches = 2});
             }))
          CHECK(s == "weft: step: of 2 micro-batches, rank 0 has had 2 backward passes and rank 1 has had 1");
      const auto fine = refusals<error>(n, o, [&](int, auto& run, auto& model) {
        for (int s = 0; s < 3; ++s) {
          differentiate(run, model, s != 1);  // not used by any rank
          run.step();
        }
      });
      for (const std::string& s : fine) CHECK(s == "");
    }
  // With one message per parameter, ranks would meet in different messages.
  const auto said = refusals<comm_error>(2, {.unit = [](const std::string& name) { return name; }},
                                         [](int rank, auto& run, auto& model) {
                                           differentiate(run, model, rank == 0);
                                           run.step();
                                         });
  for (const std::string& s : said) {
    CAPTURE(s);
    CHECK(s.find("first.") != std::string::npos);
  }
}

TEST_CASE("the gradients of a run are dropped by it, and by nothing else") {
  for (const sharding stage : stages)
    for (const int n : {1, 2}) {
      const bool in_run = n > 1;  // alone a rank has them in the model
      const auto drop = [&](auto& run, auto& model) {
        differentiate(run, model);
        const auto refuses = [&](auto f) {
          bool refused = false;
          try {
            f();
          } catch (const usage_error& e) {
            refused =
                std::string(e.what()).find("is in the run to which the model is bound") != std::string::npos;
          }
          CHECK(refused);
        };
        if (in_run) {
          refuses([&] { clip_grad_norm(model, 1.0); });
          refuses([&] { clip_grad_value(model, 1.0); });
          refuses([&] { (void)gradient_norm(parameters_of(model)); });
          refuses([&] { model.first.weight.zero_grad(); });
          refuses([&] { zero_grad(model); });
        }
        run.zero_grad();
        zero_grad(model);
        CHECK_THROWS_AS(run.step(), usage_error);  // there is nothing left to do
        differentiate(run, model);
        run.step();
        differentiate(run, model);
        (void)run.gradient_norm();
        run.zero_grad();
        differentiate(run, model);
      };
      std::vector<double> norms;
      run_ranks(n, [&](communicator& ranks) {
        two_layers model;
        initialize(model, 2);
        sgd optimizer{.lr = 0.1};
        auto run = bind(model, optimizer, ranks, {.divide = stage});
        drop(run, model);
        const double norm = run.step();
        if (ranks.rank() == 0) norms.push_back(norm);
      });
      two_layers model;
      initialize(model, 2);
      sgd optimizer{.lr = 0.1};
      self_communicator self;
      auto run = bind(model, optimizer, self, {});
      differentiate(run, model);
      run.step();
      differentiate(run, model);
      CHECK(norms[0] == doctest::Approx(run.step()).epsilon(1e-5));
    }
}

TEST_CASE("state and parameters that are elsewhere between steps: the same bits") {
  const folder f;
  const device disk(std::make_shared<cpu::file_backend>(f.path.string()));
  for (sharding stage : stages) {
    const outcome here = train_on(2, {.divide = stage, .deterministic = true}, 2);
    parallel_options o{.divide = stage, .deterministic = true};
    o.offload_optimizer = disk;
    if (stage == sharding::parameters) o.offload_parameters = disk;
    const outcome there = train_on(2, o, 2);
    CHECK(there.losses == here.losses);
    CHECK(there.norms == here.norms);
    CHECK(there.parameters == here.parameters);
  }
  CHECK(disk.memory().figures().peak > 0);
  CHECK(disk.memory().figures().in_use == 0);
}

TEST_CASE("the memory of the device shrinks by what is elsewhere") {
  const auto in_use = [](bool offloads) {
    std::size_t bytes = 0;
    run_ranks(2, [&](communicator& ranks) {
      const device where(std::make_shared<cpu::cpu_backend>(1)), other(std::make_shared<cpu::cpu_backend>(1));
      net model = net::create(where);
      adamw optimizer;
      parallel_options o{.divide = sharding::parameters};
      if (offloads) o.offload_parameters = o.offload_optimizer = other;
      auto run = bind(model, optimizer, ranks, o);
      tape steps(run);
      steps.backward(steps.eval(cross_entropy(model(batch_of(0, where, 0)), batch_of(0, where, 1))));
      run.step();
      const std::size_t state = optimizer.state.bytes();
      if (offloads)
        CHECK(other.memory().figures().in_use >=
              state + static_cast<std::size_t>(run.parallel().parameter_bytes()));
      if (ranks.rank() == 0) bytes = where.memory().figures().in_use;
    });
    return bytes;
  };
  CHECK(in_use(true) < in_use(false) / 2);
}

TEST_CASE("offloading that cannot be is refused") {
  const device other(std::make_shared<cpu::cpu_backend>(1));
  run_ranks(2, [&](communicator& ranks) {
    net model = net::create(default_device());
    adamw optimizer;
    parallel_options o;
    o.offload_parameters = other;
    CHECK_THROWS_WITH_AS(bind(model, optimizer, ranks, o),
                         doctest::Contains("where several ranks shard them"), usage_error);
  });
  CHECK_THROWS_WITH_AS(cpu::file_backend("/nonexistent"), doctest::Contains("/nonexistent: No such file"),
                       io_error);
  const folder f;
  cpu::file_backend disk(f.path.string());
  CHECK_THROWS_WITH_AS(disk.allocate(std::size_t{1} << 60),
                       doctest::Contains("no room for 1152921504606846976 bytes"), io_error);
}
