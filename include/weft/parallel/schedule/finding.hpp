// SPDX-License-Identifier: MIT
// Mistakes of schedules and their locations.
#pragma once

#include <weft/parallel/schedule/schedule.hpp>

namespace weft::pipeline {

/// The kinds of mistakes. docs/schedules.md explains how to fix each.
enum class mistake : std::uint8_t {
  wrong_sizes,              // no stages, chunks or micro-batches, a chunk on a stage that does not exist, or
                            // a stage without chunks
  not_on_this_stage,        // a chunk of another stage, or a chunk or micro-batch that does not exist
  repeated,                 // a step that the stage has executed already
  missing,                  // a step that is never executed; the location is the end of the stage's list
  backward_before_forward,  // also: a weight part before its input part
  input_missing,            // a step before the step or receive that produces its input
  sent_before_computed,     // a send before the step that produces its data
  message_without_peer,     // a message between chunks of one stage, or beyond the ends of the model
  send_without_receive,     // the peer never receives this message
  receive_without_send,     // the peer never sends this message
  out_of_order,             // the peer has another message at this position of the channel
  unequal_sizes,            // the peer sends or expects another size
  deadlock,                 // stages wait for each other in a cycle
  deadlock_of_blocking_sends,  // likewise, but only if sends wait for their receives (rendezvous)
  deadlock_of_handing,  // likewise, the step waiting for the gradient of a tied parameter (handing.hpp)
  handed_out_of_order,  // the peer computes gradients of a tied parameter in another order
};

/// The first mistake of a schedule. `step` is an index into the list of `stage`; `peer` is the other stage,
/// or -1. `chunk` and `micro_batch` are those of the step.
struct finding {
  mistake kind{};
  int stage = 0;
  int step = 0;
  int peer = -1;
  int chunk = 0;
  int micro_batch = 0;
  friend constexpr bool operator==(const finding&, const finding&) = default;
};

namespace detail {
constexpr const char* sentence_of(mistake m) {
  switch (m) {
    case mistake::wrong_sizes:
      return "the schedule has no stages, chunks or micro-batches, puts a chunk on a stage that does not "
             "exist, or has a stage without chunks";
    case mistake::not_on_this_stage:
      return "this stage does not hold the chunk, or there is no such micro-batch";
    case mistake::repeated: return "the stage has done this already";
    case mistake::missing: return "the step never comes";
    case mistake::backward_before_forward:
      return "the step comes before its forward, or before its input part";
    case mistake::input_missing: return "the input of the step is not there yet";
    case mistake::sent_before_computed: return "what is sent has not been computed yet";
    case mistake::message_without_peer: return "there is no other stage to exchange this with";
    case mistake::send_without_receive: return "the peer never receives this";
    case mistake::receive_without_send: return "the peer never sends this";
    case mistake::out_of_order: return "the peer has another message at this place of their sequence";
    case mistake::unequal_sizes: return "the peer has another size for this message";
    case mistake::deadlock: return "stages wait for each other in a cycle";
    case mistake::deadlock_of_blocking_sends:
      return "stages wait for each other in a cycle if a send waits for its receive";
    case mistake::deadlock_of_handing:
      return "stages wait for each other in a cycle, this one for the peer's gradient of a tied parameter";
    case mistake::handed_out_of_order:
      return "the peer computes its gradients of a tied parameter in another order than they are read here";
  }
  return "unknown mistake";
}
}  // namespace detail

/// One line, for example "stage 1, step 7 (chunk 1, micro-batch 3), peer 2: the peer never sends this".
inline std::string to_text(const finding& f) {
  std::string text = "stage " + std::to_string(f.stage) + ", step " + std::to_string(f.step) + " (chunk " +
                     std::to_string(f.chunk) + ", micro-batch " + std::to_string(f.micro_batch) + ")";
  if (f.peer >= 0) text += ", peer " + std::to_string(f.peer);
  return text + ": " + detail::sentence_of(f.kind);
}

}  // namespace weft::pipeline
