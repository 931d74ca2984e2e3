// SPDX-License-Identifier: MIT
// Mixed precision under strategies: bitwise identical results, and steps that all ranks skip.
#include "training.hpp"

using namespace training;

namespace {
constexpr int step_count = 50;

template <class Precision>
void same_bits() {
  const outcome whole = train_on<Precision>(1, {.deterministic = true}, 8, step_count);
  CHECK(whole.losses.back() < whole.losses.front());
  for (sharding stage : stages)
    for (int n : {2, 4, 8}) {
      const outcome part =
          train_on<Precision>(n, {.divide = stage, .deterministic = true}, 8 / n, step_count);
      INFO("stage " << static_cast<int>(stage) << " on " << n << " ranks");
      CHECK(part.losses == whole.losses);
      CHECK(part.norms == whole.norms);
      CHECK(part.parameters == whole.parameters);
      CHECK(part.optimizer == whole.optimizer);
      CHECK(part.scale == whole.scale);
    }
  const outcome hybrid = train_on<Precision>(
      4, {.divide = sharding::parameters, .shard_ranks = 2, .deterministic = true}, 2, step_count);
  CHECK(hybrid.parameters == whole.parameters);
  CHECK(hybrid.optimizer == whole.optimizer);
  const outcome three = train_on<Precision>(1, {.deterministic = true}, 3, step_count);
  for (sharding stage : stages) {
    const outcome part = train_on<Precision>(3, {.divide = stage, .deterministic = true}, 1, step_count);
    CHECK(part.parameters == three.parameters);
    CHECK(part.optimizer == three.optimizer);
  }
}
}  // namespace

TEST_CASE("bf16: the same bits under every strategy") { same_bits<precision::bf16>(); }
TEST_CASE("f16: the same bits under every strategy") { same_bits<precision::f16>(); }

TEST_CASE("selective recompute: the same bits in less memory, under every strategy") {
  const outcome whole = train_on(1, {.deterministic = true}, 4, step_count);
  for (sharding stage : stages)
    for (int n : {1, 2, 4}) {
      const outcome part =
          train_on<recompute::selective>(n, {.divide = stage, .deterministic = true}, 4 / n, step_count);
      CHECK(part.losses == whole.losses);
      CHECK(part.parameters == whole.parameters);
      CHECK(part.optimizer == whole.optimizer);
    }
}

TEST_CASE("in lower precision nearly the same is learned") {
  const outcome whole = train_on(1, {}, 4, 20);
  const outcome bf16 = train_on<precision::bf16>(1, {}, 4, 20),
                f16 = train_on<precision::f16>(1, {}, 4, 20, false, 1024);
  CHECK(largest_relative_difference(bf16.losses, whole.losses) < 2e-2);
  CHECK(largest_relative_difference(bf16.losses, whole.losses) > 1e-5);
  CHECK(largest_relative_difference(f16.losses, whole.losses) < 4e-3);
  CHECK(largest_relative_difference(f16.losses, whole.losses) > 1e-7);
}

TEST_CASE("f16: a gradient that is not finite changes the scale and nothing else, on all ranks") {
  run_ranks(2, [](communicator& ranks) {
    const device where(std::make_shared<cpu::cpu_backend>(1));
    net model = net::create(where);
    initialize(model, 5);
    adamw optimizer{.lr = 1e-2};
    auto run = bind<policy<precision::f16, strategy::fully_sharded<2>>>(model, optimizer, ranks);
    const auto step = [&] {
      tape steps(run);
      steps.backward(steps.eval(
          cross_entropy(model(batch_of(ranks.rank(), where, 0)), batch_of(ranks.rank(), where, 1))));
      return run.step();
    };
    const auto elements = [&] { return model.table.weight.to_vector(); };
    const double norm = step();
    CHECK(norm < 10);  // not in the scale of the loss
    loss_scaler large = run.scaler();
    large.scale = 0x1p90;
    large.growth_tracker = 7;
    run.set_scaler(large);
    const std::vector<float> before = elements();
    CHECK(!std::isfinite(step()));
    CHECK(run.loss_scale == 0x1p89);
    CHECK(run.scaler().growth_tracker == 0);
    CHECK(elements() == before);
    CHECK(optimizer.steps == 1);
    large.scale = 65536;
    large.growth_tracker = large.growth_interval - 1;
    run.set_scaler(large);
    CHECK(std::isfinite(step()));
    CHECK(run.loss_scale == 2 * 65536);
    CHECK(elements() != before);
    net other_model = net::create(where);
    adamw other;
    CHECK_THROWS_WITH_AS((bind<precision::f16>(other_model, other, ranks, {.hook = power_sgd()})),
                         doctest::Contains("a hook may keep unsent gradients"), usage_error);
  });
}

TEST_CASE("parameters and gradients travel in half the bytes") {
  const outcome whole = train_on(1, {}, 4, 20);
  for (sharding stage : {sharding::none, sharding::gradients, sharding::parameters})
    for (dtype t : {dtype::bf16, dtype::f16}) {
      const bool gathers = stage == sharding::parameters;
      const parallel_options plain{.divide = stage},
          half{.divide = stage, .param_dtype = gathers ? t : dtype::f32, .reduce_dtype = t};
      const outcome all = train_on(2, plain, 2, 20), less = train_on(2, half, 2, 20);
      INFO("stage " << static_cast<int>(stage) << ", " << name_of(t));
      CHECK(largest_relative_difference(less.losses, whole.losses) < 2e-2);
      CHECK(largest_relative_difference(less.losses, whole.losses) > 1e-7);
      CHECK(2 * less.sent[0] == all.sent[0]);  // all_reduce
      CHECK(2 * less.sent[1] == all.sent[1]);  // reduce_scatter
      CHECK((gathers ? 2 : 1) * less.sent[2] == all.sent[2]);
      CHECK(!half.keeps_bits(2, 2));
    }
  const outcome hybrid = train_on(4,
                                  {.divide = sharding::parameters,
                                   .shard_ranks = 2,
                                   .param_dtype = dtype::bf16,
                                   .reduce_dtype = dtype::bf16},
                                  1, 20);
  CHECK(largest_relative_difference(hybrid.losses, whole.losses) < 2e-2);
  run_ranks(2, [](communicator& ranks) {
    net model = net::create(default_device());
    adamw optimizer;
    const auto refused = [&](const parallel_options& o, const char* why) {
      CHECK_THROWS_WITH_AS(bind(model, optimizer, ranks, o), doctest::Contains(why), usage_error);
    };
    refused({.divide = sharding::gradients, .param_dtype = dtype::bf16},
            "param_dtype needs a strategy that shards parameters");
    refused({.reduce_dtype = dtype::i32}, "reduce_dtype is i32");
    refused({.reduce_dtype = dtype::bf16, .hook = bf16_compress()}, "but so does the hook");
  });
}
