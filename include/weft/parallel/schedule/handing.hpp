// SPDX-License-Identifier: MIT
// The proof for schedules whose chunks read the same parameters and hand over their gradients.
//
// In deterministic mode, or without a flush, the gradient of such a (tied) parameter goes from its last chunk
// to its first, micro-batch by micro-batch. These messages are not steps of the schedule: they are received
// when a step completes the gradients of a chunk, and could form a cycle with the steps.
//
//   const pipeline::handing tied[] = {{.to = 0, .from = 3}};
//   if (auto f = pipeline::check_handing(s, tied)) throw value_error(pipeline::to_text(*f));
#pragma once

#include <optional>
#include <span>
#include <vector>

#include <weft/parallel/schedule/finding.hpp>

namespace weft::pipeline {

/// Two chunks that read the same parameter, which has number `parameter`: when `to` completes the gradients
/// of a micro-batch, it reads the gradient that `from` has computed for the same micro-batch.
struct handing {
  int to = 0, from = 0, parameter = 0;
  friend constexpr bool operator==(const handing&, const handing&) = default;
};

namespace detail {
/// Executes the lists of all stages as far as possible. Sends are started and not waited for, except that a
/// stage's next gradient send waits until the receive of its last one has begun. Receives begin at their
/// place in the list, or before the computation that they follow.
class handing_checker {
 public:
  [[gnu::cold]] constexpr handing_checker(const schedule& s, std::span<const handing> handed)
      : s_(s),
        handed_(handed),
        next_(s.steps.size(), 0),
        last_gradient_(s.steps.size(), nullptr),
        done_(cells(s), std::uint8_t{0}) {}

  [[gnu::cold]] constexpr std::optional<finding> check() {
    for (const handing& h : handed_)
      if (auto f = compare_order(h)) return f;
    for (bool moved = true; moved;) {
      moved = false;
      for (int stage = 0; stage < s_.stages(); ++stage)
        for (; !is_finished(stage) && execute(stage, head(stage)); ++at(next_, stage)) moved = true;
    }
    for (int stage = 0; stage < s_.stages(); ++stage)
      if (const handing* h = is_finished(stage) ? nullptr : awaited(head(stage)))
        return finding{mistake::deadlock_of_handing,
                       stage,
                       at(next_, stage),
                       at(s_.stage_of, h->from),
                       head(stage).chunk,
                       head(stage).micro_batch};
    return std::nullopt;
  }

 private:
  enum : std::uint8_t { activation = 1, gradient = 2, begun = 4, complete = 8 };

  constexpr const step& head(int stage) const { return at(at(s_.steps, stage), at(next_, stage)); }
  constexpr bool is_finished(int stage) const {
    return at(next_, stage) == static_cast<int>(at(s_.steps, stage).size());
  }
  constexpr std::uint8_t& done(int chunk, int micro_batch) { return done_[cell(s_, chunk, micro_batch)]; }

  /// False if the stage has to wait.
  [[gnu::cold]] constexpr bool execute(int stage, const step& e) {
    switch (e.kind) {
      case step_kind::send_activation: done(e.chunk + 1, e.micro_batch) |= activation; return true;
      case step_kind::send_gradient: return send_gradient(stage, e);
      case step_kind::receive_activation: return (done(e.chunk, e.micro_batch) & activation) != 0;
      case step_kind::receive_gradient: return receive_gradient(e);
      default: return compute(stage, e);
    }
  }
  constexpr bool send_gradient(int stage, const step& e) {
    const step*& before = at(last_gradient_, stage);
    if (before && (done(before->chunk - 1, before->micro_batch) & begun) == 0) return false;
    before = &e;
    done(e.chunk - 1, e.micro_batch) |= gradient;
    return true;
  }
  constexpr bool receive_gradient(const step& e) {
    done(e.chunk, e.micro_batch) |= begun;
    return (done(e.chunk, e.micro_batch) & gradient) != 0;
  }
  [[gnu::cold]] constexpr bool compute(int stage, const step& e) {
    const auto& list = at(s_.steps, stage);
    for (int k = at(next_, stage) + 1; k < static_cast<int>(list.size()) && is_message(at(list, k).kind); ++k)
      if (at(list, k).kind == step_kind::receive_gradient)
        done(at(list, k).chunk, at(list, k).micro_batch) |= begun;
    if (awaited(e)) return false;
    if (completes_gradients(e.kind)) done(e.chunk, e.micro_batch) |= complete;
    return true;
  }
  /// The handing for which a step still waits; null if there is none.
  constexpr const handing* awaited(const step& e) const {
    if (completes_gradients(e.kind))
      for (const handing& h : handed_)
        if (h.to == e.chunk && (done_[cell(s_, h.from, e.micro_batch)] & complete) == 0) return &h;
    return nullptr;
  }

  /// The gradients of a parameter handed from one stage to another form one sequence: compares the orders in
  /// which they are sent and read, for the parameter and the stages of `h`.
  [[gnu::cold]] constexpr std::optional<finding> compare_order(const handing& h) const {
    const int stage = at(s_.stage_of, h.to), peer = at(s_.stage_of, h.from);
    if (stage == peer) return std::nullopt;
    const auto alike = [&](const handing& other) {
      return other.parameter == h.parameter && at(s_.stage_of, other.to) == stage &&
             at(s_.stage_of, other.from) == peer;
    };
    std::vector<step> sent;  // the steps that read them
    for (const step& e : at(s_.steps, peer))
      for (const handing& other : handed_)
        if (completes_gradients(e.kind) && other.from == e.chunk && alike(other))
          sent.push_back({.chunk = other.to, .micro_batch = e.micro_batch});
    int n = 0;
    for (int k = 0; k < static_cast<int>(at(s_.steps, stage).size()); ++k) {
      const step& e = at(at(s_.steps, stage), k);
      for (const handing& other : handed_)
        if (completes_gradients(e.kind) && other.to == e.chunk && alike(other))
          if (const step& next = at(sent, n++); next.chunk != e.chunk || next.micro_batch != e.micro_batch)
            return finding{mistake::handed_out_of_order, stage, k, peer, e.chunk, e.micro_batch};
    }
    return std::nullopt;
  }

  const schedule& s_;
  std::span<const handing> handed_;
  std::vector<int> next_;                   // by stage
  std::vector<const step*> last_gradient_;  // the last gradient that each stage has sent
  std::vector<std::uint8_t> done_;          // by chunk and micro-batch
};
}  // namespace detail

/// Returns the first mistake of a schedule with messages that passes `check`, or nullopt: the gradients that
/// are handed over do not wait in a cycle with its steps and messages, and arrive in the order in which they
/// are read. Cost: at most the number of steps times that of stages.
constexpr std::optional<finding> check_handing(const schedule& s, std::span<const handing> handed) {
  return detail::handing_checker(s, handed).check();
}

}  // namespace weft::pipeline
