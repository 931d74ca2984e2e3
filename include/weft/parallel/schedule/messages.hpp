// SPDX-License-Identifier: MIT
// Adds the sends and receives of a schedule to the lists of its stages.
//
// Activations are sent to the stage of the next chunk, gradients to the stage of the previous chunk; nothing
// is sent between chunks of one stage. The order is safe for every transport: the list of every stage is part
// of one order of all steps and messages, so no stages wait in a cycle, even if each send blocks until its
// receive is reached.
//
//   auto s = pipeline::with_messages(pipeline::gpipe(4, 8), {bytes, bytes, bytes});
#pragma once

#include <initializer_list>
#include <span>
#include <utility>

#include <weft/parallel/schedule/lists.hpp>

namespace weft::pipeline {

namespace detail {
/// Executes a schedule of compute steps in rounds, in each of which every stage executes at most one step,
/// and writes the messages: a send after its step, and its receive after the step that the receiver executes
/// in the same round.
class message_writer {
 public:
  [[gnu::cold]] constexpr message_writer(const schedule& s, std::span<const std::int64_t> sizes)
      : s_(s),
        sizes_(sizes),
        out_{s.micro_batches, s.stage_of, {}, s.flush},
        next_(s.steps.size(), 0),
        is_awake_(s.steps.size(), std::uint8_t{0}),
        arrived_(cells(s), std::uint8_t{0}) {
    out_.steps.assign(s.steps.size(), {});
    for (int stage = 0; stage < s.stages(); ++stage)
      at(out_.steps, stage).reserve(3 * at(s.steps, stage).size()), wake(stage);
  }

  constexpr schedule write() {
    while (round()) {
    }
    for (int stage = 0; stage < s_.stages(); ++stage) append_rest(stage);
    return std::move(out_);
  }
  /// After write(): whether every step received its inputs.
  constexpr bool is_complete() const { return is_complete_; }

 private:
  enum : std::uint8_t { activation = 1, gradient = 2 };

  /// Executes one round over the stages that can continue. False if there are none: all have finished or wait
  /// in a cycle.
  [[gnu::cold]] constexpr bool round() {
    std::vector<int> going;
    for (const int stage : awake_) {
      at(is_awake_, stage) = 0;
      const auto& list = at(s_.steps, stage);
      const int next = at(next_, stage);
      if (next < static_cast<int>(list.size()) && has_input(at(list, next))) going.push_back(stage);
    }
    awake_.clear();
    for (const int stage : going) {
      at(out_.steps, stage).push_back(at(at(s_.steps, stage), at(next_, stage)++));
      wake(stage);
    }
    for (const int stage : going) deliver(at(at(s_.steps, stage), at(next_, stage) - 1));
    return !going.empty();
  }
  constexpr void wake(int stage) {
    if (at(is_awake_, stage) != 0) return;
    at(is_awake_, stage) = 1;
    awake_.push_back(stage);
  }

  constexpr bool has_input(const step& e) const {
    if (e.kind == step_kind::forward) return e.chunk == 0 || is_there(e, activation);
    return !yields_gradient(e.kind) || e.chunk == s_.chunks() - 1 || is_there(e, gradient);
  }
  constexpr bool is_there(const step& e, std::uint8_t what) const {
    return (arrived_[cell(s_, e.chunk, e.micro_batch)] & what) != 0;
  }

  /// Passes the result of a step to the chunk that reads it.
  [[gnu::cold]] constexpr void deliver(const step& e) {
    if (e.kind == step_kind::backward_weight) return;
    const bool up = e.kind == step_kind::forward;
    const int to = up ? e.chunk + 1 : e.chunk - 1;
    if (to < 0 || to >= s_.chunks()) return;
    arrived_[cell(s_, to, e.micro_batch)] |= up ? activation : gradient;
    wake(at(s_.stage_of, to));
    if (!crosses(s_, e.chunk, to)) return;
    const step sent = message(up ? step_kind::send_activation : step_kind::send_gradient, e);
    at(out_.steps, at(s_.stage_of, e.chunk)).push_back(sent);
    at(out_.steps, at(s_.stage_of, to))
        .push_back(
            {up ? step_kind::receive_activation : step_kind::receive_gradient, to, e.micro_batch, sent.size});
  }
  constexpr step message(step_kind kind, const step& e) const {
    const int boundary =
        kind == step_kind::send_activation || kind == step_kind::receive_gradient ? e.chunk : e.chunk - 1;
    return {kind, e.chunk, e.micro_batch, sizes_.empty() ? 1 : sizes_[static_cast<std::size_t>(boundary)]};
  }

  /// Appends the steps whose inputs never arrive, each with its messages, so that a check finds the cycle.
  [[gnu::cold]] constexpr void append_rest(int stage) {
    const auto& list = at(s_.steps, stage);
    auto& out = at(out_.steps, stage);
    for (int k = at(next_, stage); k < static_cast<int>(list.size()); ++k) {
      is_complete_ = false;
      const step& e = at(list, k);
      const bool up = e.kind == step_kind::forward;
      const bool exchanges = up || yields_gradient(e.kind);
      const int before = up ? e.chunk - 1 : e.chunk + 1, after = up ? e.chunk + 1 : e.chunk - 1;
      if (exchanges && crosses(s_, e.chunk, before) && !has_input(e))
        out.push_back(message(up ? step_kind::receive_activation : step_kind::receive_gradient, e));
      out.push_back(e);
      if (exchanges && crosses(s_, e.chunk, after))
        out.push_back(message(up ? step_kind::send_activation : step_kind::send_gradient, e));
    }
  }

  const schedule& s_;
  std::span<const std::int64_t> sizes_;
  schedule out_;
  std::vector<int> next_;  // by stage
  std::vector<int> awake_{};  // the stages of the next round
  std::vector<std::uint8_t> is_awake_;
  std::vector<std::uint8_t> arrived_;  // by chunk and micro-batch
  bool is_complete_ = true;
};
}  // namespace detail

/// Returns `s` with its sends and receives. `sizes` has the size of the messages at each boundary between
/// chunks, in order; if it is empty, all sizes are 1. Steps that wait in a cycle keep their order. Throws
/// value_error if `s` contains messages already, if the list of one stage shows a mistake, or if `sizes` has
/// the wrong length. Cost: linear in the number of steps.
constexpr schedule with_messages(const schedule& s, std::span<const std::int64_t> sizes) {
  if (s.has_messages()) throw value_error("with_messages: the schedule has messages already");
  if (const auto f = detail::check_lists(s)) throw value_error("with_messages: " + to_text(*f));
  if (!sizes.empty() && sizes.size() + 1 != s.stage_of.size())
    throw value_error("with_messages: there must be one size for each boundary between chunks");
  return detail::message_writer(s, sizes).write();
}
constexpr schedule with_messages(const schedule& s, std::initializer_list<std::int64_t> sizes = {}) {
  return with_messages(s, std::span(sizes.begin(), sizes.size()));
}

}  // namespace weft::pipeline
