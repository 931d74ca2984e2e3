// SPDX-License-Identifier: MIT
// Settings of optimizers, schedules and scalers: PyTorch's bounds, checked before anything is updated.
#include <doctest/doctest.h>

#include <cmath>

#include <weft/optim/loss_scale.hpp>
#include <weft/optim/muon.hpp>
#include <weft/optim/schedule.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/weft.hpp>

using namespace weft;

namespace {
struct model {
  parameter<extents<2>> weight = make_parameter(extents<2>{}, init::constant(1));
};
template <class Optimizer>
void step(Optimizer o) {
  model m;
  tape steps;
  steps.backward(steps.eval(sum(m.weight)));
  try {
    o.step(m);
  } catch (...) {
    CHECK(m.weight.to_vector() == std::vector<float>{1, 1});
    throw;
  }
}
}  // namespace

TEST_CASE("optimisers: fields out of range are named") {
  const double nan = std::nan("");
  CHECK_THROWS_WITH_AS(step(sgd{.lr = -1}), "weft: sgd: lr is -1, expected 0 or more", value_error);
  CHECK_THROWS_AS(step(sgd{.lr = nan}), value_error);
  CHECK_THROWS_AS(step(sgd{.momentum = -0.1}), value_error);
  CHECK_THROWS_AS(step(sgd{.weight_decay = -1}), value_error);
  CHECK_THROWS_AS(step(sgd{.nesterov = true}), value_error);
  CHECK_THROWS_AS(step(sgd{.steps = -1}), value_error);
  CHECK_THROWS_WITH_AS(step(adamw{.beta1 = 1}), "weft: adamw: beta1 is 1, expected a value in [0, 1)",
                       value_error);
  CHECK_THROWS_AS(step(adamw{.beta2 = -0.1}), value_error);
  CHECK_THROWS_AS(step(adamw{.beta2 = nan}), value_error);
  CHECK_THROWS_AS(step(adamw{.lr = nan}), value_error);
  CHECK_THROWS_AS(step(adamw{.eps = -1e-8}), value_error);
  CHECK_THROWS_AS(step(adamw{.weight_decay = nan}), value_error);
  CHECK_THROWS_AS(step(adamw{.steps = -2}), value_error);
  CHECK_NOTHROW(step(sgd{.lr = 0}));
  CHECK_NOTHROW(step(sgd{.momentum = 5}));
  CHECK_NOTHROW(step(adamw{.beta1 = 0, .eps = 0}));
  CHECK_THROWS_WITH_AS(step(rmsprop{.alpha = 1}), "weft: rmsprop: alpha is 1, expected a value in [0, 1)",
                       value_error);
  CHECK_THROWS_AS(step(rmsprop{.momentum = -1}), value_error);
  CHECK_THROWS_AS(step(adagrad{.initial_accumulator_value = -1}), value_error);
  CHECK_THROWS_AS(step(adagrad{.eps = std::nan("")}), value_error);
  CHECK_THROWS_WITH_AS(step(muon{.momentum = 1}), "weft: muon: momentum is 1, expected a value in [0, 1)",
                       value_error);
  CHECK_THROWS_AS(step(muon{.ns_steps = -1}), value_error);
  CHECK_THROWS_AS(step(muon{.others = {.lr = -1}}), value_error);
}

TEST_CASE("schedule: fields and steps out of range are named") {
  using enum schedule::shape;
  CHECK_THROWS_WITH_AS(schedule({.kind = step, .every = 0}).at(3),
                       "weft: schedule: every is 0, expected 1 or more", value_error);
  CHECK_THROWS_AS(schedule({.kind = step, .every = -1}).at(3), value_error);
  CHECK_THROWS_AS(schedule{}.at(-1), value_error);
  CHECK_THROWS_AS(schedule({.lr = -1}).at(0), value_error);
  CHECK_THROWS_AS(schedule({.lr = std::nan("")}).at(0), value_error);
  CHECK_THROWS_AS(schedule({.warmup = -1}).at(0), value_error);
  CHECK_THROWS_AS(schedule({.kind = cosine, .steps = -1}).at(0), value_error);
  CHECK_THROWS_WITH_AS(
      schedule({.kind = cosine}).at(0),
      "weft: schedule: steps is 0, expected 1 or more and at least warmup, as a cosine or a line needs",
      value_error);
  CHECK_THROWS_AS(schedule({.kind = cosine, .warmup = 10, .steps = 9}).at(0), value_error);
  CHECK_THROWS_AS(schedule({.kind = linear}).at(0), value_error);
  CHECK_THROWS_AS(schedule({.kind = linear, .steps = 9, .final_lr = -1}).at(0), value_error);
  CHECK_NOTHROW(schedule({.warmup = 10}).at(20));
  CHECK_THROWS_AS(schedule({.kind = step, .gamma = std::nan("")}).at(0), value_error);
  CHECK(schedule({.kind = step, .lr = 1, .every = 2}).at(2) == doctest::Approx(0.1));
}

TEST_CASE("one_cycle: fields and steps out of range are named") {
  CHECK_THROWS_WITH_AS(one_cycle{}.at(0), "weft: one_cycle: steps is 0, expected 1 or more", value_error);
  CHECK_THROWS_AS(one_cycle({.steps = 9}).at(-1), value_error);
  CHECK_THROWS_AS(one_cycle({.max_lr = -1, .steps = 9}).at(0), value_error);
  CHECK_THROWS_WITH_AS(one_cycle({.steps = 9, .pct_start = 1.5}).at(0),
                       "weft: one_cycle: pct_start is 1.5, expected a value in [0, 1]", value_error);
  CHECK_THROWS_AS(one_cycle({.steps = 9, .pct_start = NAN}).at(0), value_error);
  CHECK_THROWS_AS(one_cycle({.steps = 9, .div_factor = 0}).at(0), value_error);
  CHECK_THROWS_AS(one_cycle({.steps = 9, .final_div_factor = -1}).momentum_at(0), value_error);
  CHECK_THROWS_AS(one_cycle({.steps = 9, .base_momentum = -1}).momentum_at(0), value_error);
  // cycles of a step, that only rise, and steps after the last
  CHECK(one_cycle({.max_lr = 1, .steps = 1, .pct_start = 0}).at(0) == doctest::Approx(4e-6));
  CHECK(one_cycle({.max_lr = 1, .steps = 1, .pct_start = 1}).at(0) == 1);
  CHECK(one_cycle({.max_lr = 1, .steps = 5, .pct_start = 1}).at(4) == 1);
  const one_cycle rate{.max_lr = 1, .steps = 10};
  CHECK(rate.at(9) == doctest::Approx(4e-6));
  CHECK(rate.at(1000) == rate.at(9));
  CHECK(rate.momentum_at(1000) == 0.95);
  const one_cycle late{.max_lr = 1, .steps = 10, .pct_start = 0.9, .three_phase = true};
  for (std::int64_t s : {10, 12, 1000}) CHECK(late.at(s) == late.at(9));
  CHECK_THROWS_AS(one_cycle({.max_lr = HUGE_VAL, .steps = 9}).at(0), value_error);
  CHECK_THROWS_AS(schedule({.kind = schedule::shape::cosine, .steps = 9, .final_lr = HUGE_VAL}).at(0),
                  value_error);
}

TEST_CASE("plateau: fields out of range are named; the first figure is an improvement unless it is NaN") {
  CHECK_THROWS_WITH_AS(plateau({.factor = 1}).next(1, 1),
                       "weft: plateau: factor is 1, expected a value in [0, 1)", value_error);
  CHECK_THROWS_AS(plateau({.patience = -1}).next(1, 1), value_error);
  CHECK_THROWS_AS(plateau({.threshold = NAN}).next(1, 1), value_error);
  CHECK_THROWS_AS(plateau{}.next(-1, 1), value_error);
  plateau impatient{.patience = 0};
  CHECK(impatient.next(1, NAN) == doctest::Approx(0.1));
  CHECK(!impatient.best);
  CHECK(impatient.next(1, -5) == 1);
  CHECK(impatient.best == -5.0);
}

TEST_CASE("loss_scaler: fields out of range are named") {
  CHECK_THROWS_AS(loss_scaler{.scale = 0}.update(true), value_error);
  CHECK_THROWS_AS(loss_scaler{.growth_interval = 0}.update(true), value_error);
  CHECK_THROWS_WITH_AS(loss_scaler{.scale = 1000}.update(true),
                       "weft: loss_scaler: scale is 1000, expected a power of two from 2^-24 to 2^100",
                       value_error);
  CHECK_THROWS_AS(loss_scaler{.scale = NAN}.update(true), value_error);
  CHECK_THROWS_AS((loss_scaler{.growth_interval = 3, .growth_tracker = 3}.update(true)), value_error);
  loss_scaler s{.scale = loss_scaler::most, .growth_interval = 1};
  CHECK(s.update(true));
  CHECK(s.scale == loss_scaler::most);
}

TEST_CASE("bind, step, threads, slices of a loss: sizes that make no sense") {
  model m;
  sgd o;
  self_communicator alone;
  CHECK_THROWS_WITH_AS(bind(m, o, alone, {.local_steps = 0}), "weft: bind: local_steps is 0", usage_error);
  CHECK_THROWS_AS(bind(m, o, alone, {.shard_ranks = -1}), usage_error);
  CHECK_THROWS_AS(bind(m, o, alone, {.prefetch = -1}), usage_error);
  CHECK_THROWS_AS(bind(m, o, alone, {.bucket_bytes = -1}), usage_error);
  CHECK_THROWS_AS(bind(m, o, alone, {.expert_ranks = 0}), usage_error);
  CHECK_THROWS_WITH_AS(bind(m, o, alone, {.context_ranks = 2}),
                       "weft: bind: 2 ranks that divide positions need a policy with the axis cp",
                       usage_error);
  CHECK_THROWS_WITH_AS(bind(m, o, alone, {.stages = 3}),
                       "weft: bind: 3 stages need a policy with the axis pp", usage_error);
  auto run = bind(m, o, alone, {});
  CHECK_THROWS_WITH_AS(run.step({.micro_batches = 0}), "weft: step: 0 micro-batches", value_error);
  CHECK_THROWS_AS(executor(-1), value_error);
  auto x = ones<float>(extents<2, 3>{});
  auto w = ones<float>(extents<3, 3>{});
  CHECK_THROWS_AS(linear_cross_entropy(x, w, zeros<std::int64_t>(extents<2>{}), 0), value_error);
}
