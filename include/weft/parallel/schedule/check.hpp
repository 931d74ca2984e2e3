// SPDX-License-Identifier: MIT
// Verifies that a schedule can run, in a constant expression or at run time.
//
//   if (auto f = pipeline::check(s)) throw value_error(pipeline::to_text(*f));
//   static_assert(pipeline::proved<[] { return pipeline::zb_h1(4, 16); }>);      // or does not compile
#pragma once

#include <weft/parallel/schedule/lists.hpp>
#include <weft/parallel/schedule/messages.hpp>

namespace weft::pipeline {

namespace detail {
/// Whether a send waits for its receive (rendezvous) or its message is buffered (eager).
enum class sends : std::uint8_t { buffered, blocking };

/// Compares the sends and receives of all stages. The lists must have passed check_lists.
class message_checker {
 public:
  [[gnu::cold]] constexpr explicit message_checker(const schedule& s) : s_(s), pairs_(2 * cells(s), pair{}) {}

  [[gnu::cold]] constexpr std::optional<finding> check() {
    number();
    if (auto f = compare()) return f;
    if (auto f = wait(sends::blocking)) {
      const auto even_buffered = wait(sends::buffered);
      return even_buffered ? even_buffered : f;
    }
    return std::nullopt;
  }

 private:
  /// One end of a message: its index among the messages of its channel, or -1 if it does not exist. A channel
  /// is a (source, destination, direction).
  struct end {
    int place = -1;
    std::int64_t size = 0;
  };
  struct pair {
    end sent{}, received{};
    bool buffered = false;
  };

  /// A message is identified by the chunk whose output or gradient it carries.
  constexpr pair& pair_of(const step& e) {
    const bool is_activation =
        e.kind == step_kind::send_activation || e.kind == step_kind::receive_activation;
    const int from = is_send(e.kind) ? e.chunk : peer_chunk(e);
    return pairs_[cell(s_, from, e.micro_batch) + (is_activation ? 0 : cells(s_))];
  }
  [[gnu::cold]] constexpr finding make(mistake m, int stage, int k) const {
    const step& e = at(at(s_.steps, stage), k);
    return {m, stage, k, peer_stage(s_, e), e.chunk, e.micro_batch};
  }

  [[gnu::cold]] constexpr void number() {
    std::vector<int> places(4 * s_.steps.size(), 0);  // by peer and kind: number of messages so far
    for (int stage = 0; stage < s_.stages(); ++stage) {
      const auto& list = at(s_.steps, stage);
      for (const step& e : list)
        if (is_message(e.kind)) {
          end& one = is_send(e.kind) ? pair_of(e).sent : pair_of(e).received;
          one.place = at(places, channel(e))++;
          one.size = e.size;
        }
      for (const step& e : list)
        if (is_message(e.kind)) at(places, channel(e)) = 0;
    }
  }
  constexpr int channel(const step& e) const {
    return 4 * peer_stage(s_, e) + static_cast<int>(e.kind) - static_cast<int>(step_kind::send_activation);
  }
  constexpr std::optional<finding> first_that(auto mistake_of) {
    for (int stage = 0; stage < s_.stages(); ++stage)
      for (int k = 0; k < static_cast<int>(at(s_.steps, stage).size()); ++k) {
        const step& e = at(at(s_.steps, stage), k);
        if (!is_message(e.kind)) continue;
        if (const auto m = mistake_of(e, pair_of(e))) return make(*m, stage, k);
      }
    return std::nullopt;
  }
  /// Reports messages without a peer first, because they displace all later messages of their channel.
  [[gnu::cold]] constexpr std::optional<finding> compare() {
    auto f = first_that([](const step& e, const pair& p) -> std::optional<mistake> {
      if (p.sent.place >= 0 && p.received.place >= 0) return std::nullopt;
      return is_send(e.kind) ? mistake::send_without_receive : mistake::receive_without_send;
    });
    if (f) return f;
    return first_that([](const step&, const pair& p) -> std::optional<mistake> {
      if (p.sent.place != p.received.place) return mistake::out_of_order;
      if (p.sent.size != p.received.size) return mistake::unequal_sizes;
      return std::nullopt;
    });
  }

  /// Executes all lists as far as possible; returns a mistake if they do not finish.
  [[gnu::cold]] constexpr std::optional<finding> wait(sends mode) {
    next_.assign(s_.steps.size(), 0);
    std::vector<int> ready;
    for (int stage = 0; stage < s_.stages(); ++stage) ready.push_back(stage);
    while (!ready.empty()) {
      const int stage = ready.back();
      ready.pop_back();
      advance(stage, mode, ready);
    }
    for (int stage = 0; stage < s_.stages(); ++stage)
      if (!is_finished(stage)) return in_cycle(stage, mode);
    return std::nullopt;
  }
  constexpr bool is_finished(int stage) const {
    return at(next_, stage) == static_cast<int>(at(s_.steps, stage).size());
  }
  constexpr const step& head(int stage) const { return at(at(s_.steps, stage), at(next_, stage)); }

  [[gnu::cold]] constexpr void advance(int stage, sends mode, std::vector<int>& ready) {
    for (; !is_finished(stage); ++at(next_, stage)) {
      const step& e = head(stage);
      if (!is_message(e.kind)) continue;
      const int peer = peer_stage(s_, e);
      if (mode == sends::blocking) {
        if (is_finished(peer) || !is_message(head(peer).kind) || &pair_of(head(peer)) != &pair_of(e)) return;
        ++at(next_, peer);
        ready.push_back(peer);
      } else if (is_send(e.kind)) {
        pair_of(e).buffered = true;
        ready.push_back(peer);
      } else if (!pair_of(e).buffered) {
        return;
      }
    }
  }
  /// Follows the waiting stages until a stage occurs twice.
  [[gnu::cold]] constexpr finding in_cycle(int stage, sends mode) const {
    for (int k = 0; k < s_.stages(); ++k) stage = peer_stage(s_, head(stage));
    return make(mode == sends::blocking ? mistake::deadlock_of_blocking_sends : mistake::deadlock, stage,
                at(next_, stage));
  }

  const schedule& s_;
  std::vector<pair> pairs_;
  std::vector<int> next_{};  // by stage
};
}  // namespace detail

/// Returns the first mistake of `s`, or nullopt if it can run on every transport:
/// - every stage executes the forward and the backward step of each of its chunks once for each micro-batch,
/// the backward step whole or in two parts, and after the steps whose results it reads;
/// - every send has a receive of equal size; between two stages, activations arrive in the order in which
/// they were sent, and so do gradients;
/// - no stages wait for each other in a cycle, whether sends are buffered or wait for their receives.
/// A schedule without messages is checked with the messages of with_messages(); `step` then counts its own
/// steps. Cost: linear in the number of steps.
[[gnu::cold]] constexpr std::optional<finding> check(const schedule& s) {
  if (auto f = detail::check_lists(s)) return f;
  if (s.has_messages()) return detail::message_checker(s).check();
  detail::message_writer writer(s, {});
  const schedule full = writer.write();
  if (writer.is_complete()) return std::nullopt;  // in an order that every transport can execute
  auto f = detail::message_checker(full).check();
  int own = 0;
  for (int k = 0; k < f->step; ++k)
    if (!is_message(detail::at(detail::at(full.steps, f->stage), k).kind)) ++own;
  f->step = own;
  return f;
}

// ----- in a constant expression -----

/// The location of a mistake, as types that the compiler prints in its error message.
template <int>
struct stage {};
template <int>
struct step_number {};
template <int>
struct peer {};

/// Instantiated for a schedule that cannot run: the error message of the compiler contains the mistake and
/// its location.
template <mistake Kind, class Stage, class Step, class Peer>
struct schedule_refused {
  static_assert(sizeof(Stage) == 0,
                "weft: pipeline: the schedule cannot run: see the mistake, stage, step and peer of "
                "schedule_refused<>; docs/schedules.md says what to change");
  static constexpr bool value = false;
};

namespace detail {
template <auto Make>
constexpr bool prove() {
  constexpr std::optional<finding> f = check(Make());
  if constexpr (f.has_value())
    return schedule_refused<f->kind, stage<f->stage>, step_number<f->step>, peer<f->peer>>::value;
  else
    return true;
}
}  // namespace detail

/// True for a function that returns a schedule which passes `check`. For other functions the program does not
/// compile, with the finding in the first lines of the error message.
template <auto Make>
inline constexpr bool proved = detail::prove<Make>();

}  // namespace weft::pipeline
