// SPDX-License-Identifier: MIT
// Ranks whose parameters are on devices with separate memory: messages go through the host. Skipped without
// an OpenCL device.
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
  // One process, with a device for each rank, of different kinds.
  std::vector<double> losses;
  run_ranks(2, [&](communicator& ranks) {
    const outcome mine = ranks.rank() ? train(ranks, {}, 2, 6, false, 1, opencl) : train(ranks, {}, 2, 6);
    if (ranks.rank() == 0) losses = mine.losses;
  });
  CHECK(largest_relative_difference(losses, whole.losses) < 1e-5);
}

#if WEFT_WITH_OPENCL
namespace {
/// The losses of three steps on two ranks, for a model created on the CPU, with elements or without, and the
/// device that the ranks train on.
template <class Plan>
std::vector<double> losses_of(bool deferred, std::string& device_name) {
  std::vector<double> losses;
  run_ranks(2, [&](communicator& ranks) {
    net model = net::create(deferred ? default_device().deferred() : default_device());
    initialize(model, 5);
    adamw optimizer{.lr = 1e-2};
    auto run = bind<Plan>(model, optimizer, ranks);
    const device where = run.where();
    for (int s = 0; s < 3; ++s) {
      const index_t g = 2 * s + ranks.rank();
      const auto inputs = batch_of(g, where, 0), labels = batch_of(g, where, 1);
      const auto r = run.step(1, [&](index_t) { return cross_entropy(model(inputs), labels); });
      if (ranks.rank() == 0) losses.push_back(r.loss);
    }
    if (ranks.rank() == 0) device_name = where->name();
  });
  return losses;
}
}  // namespace

TEST_CASE("a policy chooses the device of all ranks, with parameters that have elements and without") {
  try {
    on<opencl>::where();
  } catch (const device_error& e) {
    test::skip("opencl", e.what());
    return;
  }
  std::string where;
  const auto expected = losses_of<policy<on<host>, strategy::fully_sharded<3>>>(false, where);
  CHECK(where == "cpu");
  for (const bool deferred : {false, true}) {
    const auto there = losses_of<policy<on<opencl>, strategy::fully_sharded<3>>>(deferred, where);
    CHECK(where == "opencl");
    CHECK(largest_relative_difference(there, expected) < 1e-5);
  }
  CHECK_THROWS_AS((on<opencl>::where({.device = 99})), device_error);
  context_in<on<opencl>> c;  // the same device, whose tensors both can read
  CHECK(c.where() == on<opencl>::where());
}
#endif
