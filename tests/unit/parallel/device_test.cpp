// SPDX-License-Identifier: MIT
// Ranks whose parameters lie on devices with memory of their own: messages go by way of the host.
// Skipped where there is no OpenCL device.
#include "training.hpp"

#include <weft/gpu/open.hpp>

#include "../../skip.hpp"

using namespace training;

TEST_CASE("parameters on a device with memory of its own") {
  const auto opencl = [] { return open_device("opencl"); };
  try {
    opencl();
  } catch (const device_error& e) {
    test::skip("opencl", e.what());
    return;
  }
  const outcome whole = train_on(1, {.deterministic = true}, 4);
  const outcome there = train_on(1, {.deterministic = true}, 4, 6, false, 1, opencl);
  CHECK(largest_relative_difference(there.losses, whole.losses) < 1e-5);
  for (sharding stage : stages) {
    INFO("stage " << static_cast<int>(stage));
    const outcome part = train_on(2, {.divide = stage, .deterministic = true}, 2, 6, false, 1, opencl);
    CHECK(part.losses == there.losses);
    CHECK(part.parameters == there.parameters);
  }
  const outcome half = train_on<precision::bf16>(
      2, {.divide = sharding::parameters, .param_dtype = dtype::bf16, .reduce_dtype = dtype::bf16}, 2, 6,
      false, 1, opencl);
  CHECK(largest_relative_difference(half.losses, whole.losses) < 2e-2);
  std::vector<float> weights[2];
  run_ranks(2, [&](communicator& ranks) {
    const device where = opencl();
    net model = net::create(where);
    initialize(model, 5);
    adamw optimizer{.lr = 1e-2};
    auto run = bind(model, optimizer, ranks, {.local_steps = 2});
    for (int s = 0; s < 2; ++s) {
      tape steps(run);
      const index_t g = 2 * s + ranks.rank();
      steps.backward(steps.eval(cross_entropy(model(batch_of(g, where, 0)), batch_of(g, where, 1))));
      run.step();
    }
    weights[ranks.rank()] = model.table.weight.to_vector();
  });
  CHECK(weights[0] == weights[1]);
  // One process, a device for each rank: not of one kind either.
  std::vector<double> losses;
  run_ranks(2, [&](communicator& ranks) {
    const outcome mine = ranks.rank() ? train(ranks, {}, 2, 6, false, 1, opencl) : train(ranks, {}, 2, 6);
    if (ranks.rank() == 0) losses = mine.losses;
  });
  CHECK(largest_relative_difference(losses, whole.losses) < 1e-5);
}
