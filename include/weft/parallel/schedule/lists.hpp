// SPDX-License-Identifier: MIT
// Checks of the list of a single stage: every step belongs to the stage, occurs once, and follows the steps
// whose results it reads.
#pragma once

#include <optional>
#include <vector>

#include <weft/parallel/schedule/finding.hpp>

namespace weft::pipeline::detail {

/// Checks the lists of all stages. If the schedule contains messages, inputs from other stages must have been
/// received.
class list_checker {
 public:
  constexpr explicit list_checker(const schedule& s)
      : s_(s), has_messages_(s.has_messages()), done_(cells(s), std::uint8_t{0}) {}

  constexpr std::optional<finding> check() {
    for (int stage = 0; stage < s_.stages(); ++stage) {
      const auto& list = at(s_.steps, stage);
      for (int k = 0; k < static_cast<int>(list.size()); ++k)
        if (const auto m = execute(stage, at(list, k))) return make(*m, stage, k, at(list, k));
    }
    for (int chunk = 0; chunk < s_.chunks(); ++chunk)
      for (int j = 0; j < s_.micro_batches; ++j)
        if ((done_[cell(s_, chunk, j)] & all) != all) return missing(chunk, j);
    return std::nullopt;
  }

 private:
  using bits = std::uint8_t;
  enum : bits { forward = 1, input = 2, weight = 4, all = 7 };
  enum : bits { received_activation = 8, received_gradient = 16, sent_activation = 32, sent_gradient = 64 };
  using outcome = std::optional<mistake>;

  constexpr finding make(mistake m, int stage, int k, const step& e) const {
    return {m, stage, k, is_message(e.kind) ? peer_stage(s_, e) : -1, e.chunk, e.micro_batch};
  }
  constexpr finding missing(int chunk, int micro_batch) const {
    const int stage = at(s_.stage_of, chunk);
    return {mistake::missing, stage, static_cast<int>(at(s_.steps, stage).size()), -1, chunk, micro_batch};
  }

  constexpr outcome execute(int stage, const step& e) {
    if (e.chunk < 0 || e.chunk >= s_.chunks() || at(s_.stage_of, e.chunk) != stage || e.micro_batch < 0 ||
        e.micro_batch >= s_.micro_batches)
      return mistake::not_on_this_stage;
    bits& done = done_[cell(s_, e.chunk, e.micro_batch)];
    switch (e.kind) {
      case step_kind::forward:
        return compute(done, forward, 0, has_input(e, e.chunk - 1, received_activation));
      case step_kind::backward:
        return compute(done, input | weight, forward, has_input(e, e.chunk + 1, received_gradient));
      case step_kind::backward_input:
        return compute(done, input, forward, has_input(e, e.chunk + 1, received_gradient));
      case step_kind::backward_weight: return compute(done, weight, input, true);
      case step_kind::send_activation: return exchange(e, done, sent_activation, forward);
      case step_kind::receive_activation: return exchange(e, done, received_activation, 0);
      case step_kind::send_gradient: return exchange(e, done, sent_gradient, input);
      case step_kind::receive_gradient: return exchange(e, done, received_gradient, 0);
    }
    return mistake::not_on_this_stage;
  }

  static constexpr outcome compute(bits& done, int what, int after, bool has_its_input) {
    if ((done & what) != 0) return mistake::repeated;
    if ((done & after) != after) return mistake::backward_before_forward;
    if (!has_its_input) return mistake::input_missing;
    done = static_cast<bits>(done | what);
    return std::nullopt;
  }
  constexpr outcome exchange(const step& e, bits& done, int what, int after) const {
    if (!crosses(s_, e.chunk, peer_chunk(e))) return mistake::message_without_peer;
    if ((done & what) != 0) return mistake::repeated;
    if ((done & after) != after) return mistake::sent_before_computed;
    done = static_cast<bits>(done | what);
    return std::nullopt;
  }
  /// Whether the output of chunk `from` that this step reads is available on the stage.
  constexpr bool has_input(const step& e, int from, bits received) const {
    if (from < 0 || from >= s_.chunks()) return true;
    if (crosses(s_, e.chunk, from))
      return !has_messages_ || (done_[cell(s_, e.chunk, e.micro_batch)] & received) != 0;
    return (done_[cell(s_, from, e.micro_batch)] & (from < e.chunk ? forward : input)) != 0;
  }

  const schedule& s_;
  bool has_messages_;
  std::vector<bits> done_;  // by chunk and micro-batch
};

constexpr std::optional<finding> check_lists(const schedule& s) {
  if (s.stages() < 1 || s.chunks() < 1 || s.micro_batches < 1) return finding{.kind = mistake::wrong_sizes};
  std::vector<std::uint8_t> has_chunk(s.steps.size(), 0);  // by stage
  for (int c = 0; c < s.chunks(); ++c) {
    if (at(s.stage_of, c) < 0 || at(s.stage_of, c) >= s.stages())
      return finding{.kind = mistake::wrong_sizes, .stage = at(s.stage_of, c), .chunk = c};
    at(has_chunk, at(s.stage_of, c)) = 1;
  }
  for (int stage = 0; stage < s.stages(); ++stage)
    if (at(has_chunk, stage) == 0)
      return finding{.kind = mistake::wrong_sizes, .stage = stage};
  return list_checker(s).check();
}

}  // namespace weft::pipeline::detail
