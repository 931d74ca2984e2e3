// SPDX-License-Identifier: MIT
// Ranks with different numbers of batches, and parameters and state that live elsewhere.
#include "training.hpp"

#include <filesystem>

#include <weft/device/cpu/file.hpp>

using namespace training;

namespace {

/// Losses of steps in which rank r has a batch while step < counts[r].
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

/// The same by one rank, which takes the batches that there are.
std::vector<double> alone(const std::vector<int>& counts) {
  const device where(std::make_shared<cpu::cpu_backend>(1));
  net model = net::create(where);
  initialize(model, 5);
  adamw optimizer{.lr = 1e-2};
  self_communicator self;
  auto run = bind(model, optimizer, self, {.deterministic = true});
  std::vector<double> result;
  const int n = static_cast<int>(counts.size()), most = *std::max_element(counts.begin(), counts.end());
  for (int s = 0; s < most; ++s) {
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
                         doctest::Contains("where several ranks divide them"), usage_error);
  });
  CHECK_THROWS_WITH_AS(cpu::file_backend("/nonexistent"), doctest::Contains("/nonexistent: No such file"),
                       io_error);
  const folder f;
  cpu::file_backend disk(f.path.string());
  CHECK_THROWS_WITH_AS(disk.allocate(std::size_t{1} << 60),
                       doctest::Contains("no room for 1152921504606846976 bytes"), io_error);
}
