// SPDX-License-Identifier: MIT
// The values that stages hold at a time: activations, inputs of deferred weight parts, received messages, and
// versions of parameters.
//
//   pipeline::live(pipeline::one_f_one_b(4, 16))[1].activations     // 3
#pragma once

#include <algorithm>

#include <weft/parallel/schedule/check.hpp>

namespace weft::pipeline {

/// The maximum numbers of values that a stage holds at a time, in micro-batches of one chunk. Divide by the
/// number of chunks of a stage to obtain micro-batches of the stage.
struct live_counts {
  int activations = 0;    // forward steps whose backward step or input part is still to come
  int weight_inputs = 0;  // input parts whose weight part is still to come
  int together = 0;       // both: values held if the input part frees nothing
  int versions = 1;       // of a chunk's parameters, including the newest; more than 1 only without flush
  int received = 0;       // activations and gradients received but not read yet; only with messages
  std::int64_t received_size = 0;  // the sum of their sizes
  friend constexpr bool operator==(const live_counts&, const live_counts&) = default;
};

namespace detail {
/// Counts the versions of one chunk's parameters that are in use.
class version_counter {
 public:
  constexpr explicit version_counter(int micro_batches)
      : users_(static_cast<std::size_t>(micro_batches) + 1, 0),
        of_micro_batch_(static_cast<std::size_t>(micro_batches), 0) {}
  constexpr void forward(int j) {
    at(of_micro_batch_, j) = newest_;
    if (at(users_, newest_)++ == 0) ++in_use_;
  }
  constexpr void update(int j) {
    if (--at(users_, at(of_micro_batch_, j)) == 0) --in_use_;
    ++newest_;
  }
  constexpr int held() const { return in_use_ + (at(users_, newest_) == 0 ? 1 : 0); }

 private:
  std::vector<int> users_;           // by version: forward steps whose backward step is still to come
  std::vector<int> of_micro_batch_;  // the version that its forward step used
  int newest_ = 0;
  int in_use_ = 0;  // versions with users
};

class live_counter {
 public:
  constexpr explicit live_counter(const schedule& s)
      : s_(s), versions_(s.stage_of.size(), version_counter(s.flush ? 0 : s.micro_batches)) {
    if (s.has_messages()) received_.assign(2 * cells(s), 0);
  }
  constexpr live_counts count(int stage) {
    now_ = {}, most_ = {};
    for (const step& e : at(s_.steps, stage)) {
      begin(e);
      raise();
      end(e);
    }
    return most_;
  }

 private:
  constexpr void begin(const step& e) {
    switch (e.kind) {
      case step_kind::forward: ++now_.activations; break;
      case step_kind::backward_input: --now_.activations, ++now_.weight_inputs; break;
      case step_kind::receive_activation: receive(e, 0); break;
      case step_kind::receive_gradient: receive(e, cells(s_)); break;
      default: break;
    }
    if (!s_.flush && e.kind == step_kind::forward) version_of(e).forward(e.micro_batch);
  }
  /// Inputs of a step are held until its end.
  constexpr void end(const step& e) {
    if (e.kind == step_kind::backward) --now_.activations;
    if (e.kind == step_kind::backward_weight) --now_.weight_inputs;
    if (e.kind == step_kind::forward && crosses(s_, e.chunk, e.chunk - 1)) release(e, 0);
    if (yields_gradient(e.kind) && crosses(s_, e.chunk, e.chunk + 1)) release(e, cells(s_));
    if (s_.flush || (e.kind != step_kind::backward && e.kind != step_kind::backward_weight)) return;
    version_of(e).update(e.micro_batch);
    most_.versions = std::max(most_.versions, version_of(e).held());
  }
  constexpr void receive(const step& e, std::size_t direction) {
    ++now_.received;
    now_.received_size += received_[cell(s_, e.chunk, e.micro_batch) + direction] = e.size;
  }
  constexpr void release(const step& e, std::size_t direction) {
    if (received_.empty()) return;
    --now_.received;
    now_.received_size -= received_[cell(s_, e.chunk, e.micro_batch) + direction];
  }
  constexpr void raise() {
    const auto larger = [](auto& most, auto now) { most = std::max(most, now); };
    larger(most_.activations, now_.activations);
    larger(most_.weight_inputs, now_.weight_inputs);
    larger(most_.together, now_.activations + now_.weight_inputs);
    larger(most_.received, now_.received);
    larger(most_.received_size, now_.received_size);
  }
  constexpr version_counter& version_of(const step& e) { return at(versions_, e.chunk); }

  const schedule& s_;
  std::vector<version_counter> versions_;  // by chunk
  std::vector<std::int64_t> received_{};   // sizes by chunk and micro-batch, activations first
  live_counts now_{}, most_{};
};
}  // namespace detail

/// The maximum numbers of values that the stages hold, by stage. Throws value_error with the finding if the
/// schedule does not pass `check`. Cost: linear in the number of steps.
constexpr std::vector<live_counts> live(const schedule& s) {
  if (const auto f = check(s)) throw value_error("live: " + to_text(*f));
  detail::live_counter counter(s);
  std::vector<live_counts> counts;
  for (int stage = 0; stage < s.stages(); ++stage) counts.push_back(counter.count(stage));
  return counts;
}

/// Whether every chunk accumulates the gradients of its parameters in ascending order of micro-batches, as a
/// single rank does. All such schedules give bitwise equal results.
constexpr bool ascends(const schedule& s) {
  std::vector<int> next(s.stage_of.size(), 0);
  for (const auto& list : s.steps)
    for (const step& e : list)
      if (completes_gradients(e.kind))
        if (detail::at(next, e.chunk)++ != e.micro_batch) return false;
  return true;
}

}  // namespace weft::pipeline
