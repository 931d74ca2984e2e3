// SPDX-License-Identifier: MIT
// The messages between the stages of a pipeline: activations, and their gradients.
#pragma once

#include <algorithm>
#include <vector>

#include <weft/parallel/schedule/schedule.hpp>
#include <weft/parallel/unit.hpp>

namespace weft::parallel {

/// Sends and receives of one stage. take() waits for a received value. The memory of a sent value is kept
/// until a point of the schedule at which its message has arrived or will soon, so that the memory use of a
/// stage depends on the schedule only: an activation is kept until its gradient is taken, a gradient until
/// the next one is sent.
class stage_messages {
 public:
  stage_messages(communicator& stages, const device& where)
      : stages_(&stages), where_(where), messages_(message_device(where, &stages)) {}
  stage_messages(const stage_messages&) = delete;
  stage_messages& operator=(const stage_messages&) = delete;
  ~stage_messages();

  /// Sends `value` as the message that the step describes.
  void send(const pipeline::schedule& s, const pipeline::step& e, const state_ptr& value, comm_options o);

  /// Starts to receive the message that the step describes, a tensor like `like`, unless it has been started.
  void receive(const pipeline::schedule& s, const pipeline::step& e, const tensor_state& like,
               comm_options o);
  bool has(const pipeline::step& e) { return find(e) != coming_.end(); }

  /// Waits for a message that receive() has started.
  void await(const pipeline::step& e) { find(e)->in_flight.wait(); }
  /// Waits for a message that receive() has begun, and returns its value; null if it has not begun, as for a
  /// gradient that does not exist.
  state_ptr take(const pipeline::step& e);

  /// Waits until everything has been sent.
  void complete() {
    drop([](const message&) { return true; });
  }

 private:
  struct message {
    pipeline::step_kind kind;
    int chunk, micro_batch;
    state_ptr value;
    work in_flight;

    bool is(const pipeline::step& e) const {
      return kind == e.kind && chunk == e.chunk && micro_batch == e.micro_batch;
    }
  };
  using message_list = std::vector<message>;  // searched in order: a stage has few messages at a time

  static message& append(message_list& to, const pipeline::step& e, state_ptr value) {
    to.push_back({e.kind, e.chunk, e.micro_batch, std::move(value), work()});
    return to.back();
  }
  message_list::iterator find(const pipeline::step& e) {
    return std::find_if(coming_.begin(), coming_.end(), [&](const message& m) { return m.is(e); });
  }
  /// Waits until the sent messages for which chosen(message) holds have arrived, and frees them.
  template <class F>
  void drop(F chosen) {
    for (const message& m : sent_)
      if (chosen(m)) m.in_flight.wait();
    std::erase_if(sent_, chosen);
  }
  /// Equal on both sides: of the boundary between two chunks, and of the direction.
  static int tag(const pipeline::step& e);
  /// With a label that is equal on both sides.
  static comm_options labelled(const pipeline::step& e, comm_options o);

  communicator* stages_;
  device where_, messages_;
  message_list sent_, coming_;
};

}  // namespace weft::parallel

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/stage_messages.ipp>
#endif
