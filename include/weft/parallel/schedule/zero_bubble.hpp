// SPDX-License-Identifier: MIT
// Schedules that compute gradients of parameters separately from gradients of inputs, and use them to fill
// idle time.
//
// In the V placement, stage s holds chunks s and 2 stages - 1 - s, so the loss is computed on the stage of
// the first chunk. Every chunk executes each kind of step in ascending order of micro-batches. Cost: linear
// in the number of steps.
#pragma once

#include <weft/parallel/schedule/loops.hpp>

namespace weft::pipeline {

/// ZB-H1 (Qi et al., 2023): 1F1B with the same memory; stage s defers gradients of parameters by s
/// micro-batches.
constexpr schedule zb_h1(int stages, int micro_batches) {
  schedule s = detail::empty_schedule("zb_h1", stages, micro_batches, 1, detail::placement::loop);
  for (int stage = 0; stage < stages; ++stage) {
    auto& list = detail::at(s.steps, stage);
    list.reserve(3 * static_cast<std::size_t>(micro_batches));
    const int warm_up = std::min(stages - 1 - stage, micro_batches);
    for (int j = 0; j < warm_up; ++j) list.push_back({step_kind::forward, stage, j});
    for (int j = 0; j < micro_batches; ++j) {
      if (warm_up + j < micro_batches) list.push_back({step_kind::forward, stage, warm_up + j});
      list.push_back({step_kind::backward_input, stage, j});
      if (j >= stage) list.push_back({step_kind::backward_weight, stage, j - stage});
    }
    for (int j = std::max(0, micro_batches - stage); j < micro_batches; ++j)
      list.push_back({step_kind::backward_weight, stage, j});
  }
  return s;
}

namespace detail {
/// Writes the list of a stage in the V placement. `half` 0 is its chunk on the way down, 1 the chunk on the
/// way up; each call adds the next micro-batch of its kind of step.
class v_writer {
 public:
  constexpr v_writer(schedule& s, int stage)
      : list_(at(s.steps, stage)),
        micro_batches_(s.micro_batches),
        chunk_{stage, s.chunks() - 1 - stage} {
    list_.reserve(6 * static_cast<std::size_t>(micro_batches_));
  }
  constexpr void forward(int half) { add(step_kind::forward, half, forwards_[half]++); }
  constexpr void input(int half) { add(step_kind::backward_input, half, inputs_[half]++); }
  constexpr void weight(int half) { add(step_kind::backward_weight, half, weights_[half]++); }
  constexpr void backward(int half) {
    add(step_kind::backward, half, inputs_[half]++);
    ++weights_[half];
  }
  constexpr int forwards(int half) const { return forwards_[half]; }
  constexpr int deferred(int half) const { return inputs_[half] - weights_[half]; }

 private:
  // The fixed part of zb_v assumes at least 2 stages - 1 micro-batches; with fewer, the steps of the others
  // are omitted.
  constexpr void add(step_kind kind, int half, int micro_batch) {
    if (micro_batch < micro_batches_) list_.push_back({kind, chunk_[half], micro_batch});
  }
  std::vector<step>& list_;
  int micro_batches_;
  int chunk_[2];
  int forwards_[2] = {}, inputs_[2] = {}, weights_[2] = {};
};

constexpr void write_zb_v(v_writer& w, int stages, int stage, int micro_batches) {
  const int least = std::max(2 * stages - 1, micro_batches);
  for (int k = 0; k < 2 * (stages - stage) - 1; ++k) w.forward(0);
  for (int k = 0; k < stage; ++k) w.forward(1), w.forward(0);
  for (int k = 0; k < stages - stage; ++k) w.forward(1), w.input(1), w.weight(1);
  while (w.forwards(1) < w.forwards(0) || w.forwards(0) < least) {
    if (w.forwards(0) < least) w.forward(0);
    w.input(0), w.weight(0);
    w.forward(1), w.input(1), w.weight(1);
  }
  for (int k = 0; k < stage; ++k) w.input(0), w.input(1);
  for (int k = 0; k < stages - stage; ++k) w.input(0), w.weight(0);
  while (w.deferred(1) > 0) w.weight(1);
  while (w.deferred(0) > 0) w.weight(0);
}

/// After the first backward step without its weight part, `deferred` counts the pending weight parts of a
/// half.
constexpr void write_dual_pipe_v(v_writer& w, int stages, int stage, int micro_batches) {
  const int below = stages - 1 - stage;
  for (int k = 0; k < 2 * below; ++k) w.forward(0);
  for (int k = 0; k <= stage; ++k) w.forward(0), w.forward(1);
  for (int k = 0; k < below; ++k) w.input(1), w.weight(1), w.forward(1);
  for (int k = 0; k < micro_batches - 2 * stages + stage + 1; ++k) {
    w.forward(0), w.backward(1);
    w.forward(1), w.backward(0);
  }
  for (int k = 0; k < below; ++k) w.backward(1), w.forward(1), w.backward(0);
  std::vector<int> deferred;
  const auto backward = [&](int half, bool defers) {
    if (!defers) return w.backward(half);
    w.input(half);
    deferred.push_back(half);
  };
  for (int k = 0; k <= stage; ++k) {
    const int half_of_them = (stage + 1) / 2;
    backward(1, k > half_of_them || (k == half_of_them && stage % 2 == 1));
    backward(0, k >= half_of_them);
  }
  std::size_t paid = 0;
  const auto pay = [&] {
    if (paid < deferred.size()) w.weight(deferred[paid++]);
  };
  for (int k = 0; k < below; ++k) pay(), backward(0, true);
  while (paid < deferred.size()) pay();
}
}  // namespace detail

/// ZB-V (Qi et al., 2024): no idle time between the first and last step of a stage if forward steps, input
/// parts and weight parts take equal time, with the memory of 1F1B.
constexpr schedule zb_v(int stages, int micro_batches) {
  schedule s = detail::empty_schedule("zb_v", stages, micro_batches, 2, detail::placement::v);
  for (int stage = 0; stage < stages; ++stage) {
    detail::v_writer w(s, stage);
    detail::write_zb_v(w, stages, stage, micro_batches);
  }
  return s;
}

/// DualPipeV (DeepSeek, 2025): pairs of forward and backward steps of different micro-batches; the messages
/// of one overlap with the computation of the other. Throws value_error for fewer than 2 stages
/// micro-batches.
constexpr schedule dual_pipe_v(int stages, int micro_batches) {
  schedule s = detail::empty_schedule("dual_pipe_v", stages, micro_batches, 2, detail::placement::v);
  if (micro_batches < 2 * stages)
    detail::refuse_size("dual_pipe_v", "micro_batches", micro_batches,
                        "twice the stages, " + std::to_string(2 * stages) + ", or more");
  for (int stage = 0; stage < stages; ++stage) {
    detail::v_writer w(s, stage);
    detail::write_dual_pipe_v(w, stages, stage, micro_batches);
  }
  return s;
}

}  // namespace weft::pipeline
