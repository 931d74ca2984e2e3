// SPDX-License-Identifier: MIT
// The messages between the stages of a pipeline: activations, and their gradients.
#pragma once

#include <map>
#include <tuple>

#include <weft/parallel/schedule/schedule.hpp>
#include <weft/parallel/unit.hpp>

namespace weft::parallel {

/// Sends and receives of one stage. A received value is waited for when it is taken. The memory of a sent one
/// is kept until a point of the schedule at which its message has arrived or soon will, so that what a stage
/// holds depends on the schedule only: an activation until its gradient is taken, a gradient until the next
/// one is sent.
class stage_messages {
 public:
  stage_messages(communicator& stages, const device& where)
      : stages_(&stages), where_(where), messages_(message_device(where, &stages)) {}
  stage_messages(const stage_messages&) = delete;
  stage_messages& operator=(const stage_messages&) = delete;
  ~stage_messages() {
    for (const auto* some : {&sent_, &coming_})
      for (const auto& [key, m] : *some) m.in_flight.finish();
  }

  /// Sends `value` as the message that the step describes.
  void send(const pipeline::schedule& s, const pipeline::step& e, const state_ptr& value, comm_options o) {
    if (e.kind == pipeline::step_kind::send_gradient) drop(sent_.lower_bound({e.kind, 0, 0}), sent_.end());
    const state_ptr value_sent = reachable(messages_, value);
    message& m = sent_.emplace(key(e), message{value_sent, work()}).first->second;
    m.in_flight = stages_->send(elements_of(*value_sent), pipeline::detail::peer_stage(s, e), tag(e),
                                labelled(e, std::move(o)));
  }

  /// Starts to receive the message that the step describes, a tensor like `like`, unless that has begun.
  void receive(const pipeline::schedule& s, const pipeline::step& e, const tensor_state& like,
               comm_options o) {
    if (has(e)) return;
    message& m =
        coming_.emplace(key(e), message{state_like(like, messages_), work()}).first->second;
    m.in_flight = stages_->receive(elements_of(*m.value), pipeline::detail::peer_stage(s, e), tag(e),
                                   labelled(e, std::move(o)));
  }
  bool has(const pipeline::step& e) const { return coming_.contains(key(e)); }

  /// Waits for a message that receive() has begun.
  void await(const pipeline::step& e) const { coming_.at(key(e)).in_flight.wait(); }
  /// Waits for a message that receive() has begun, and returns its value.
  state_ptr take(const pipeline::step& e) {
    const auto found = coming_.find(key(e));
    const message m = std::move(found->second);
    coming_.erase(found);
    m.in_flight.wait();
    if (e.kind == pipeline::step_kind::receive_gradient)  // computed from this activation
      if (const auto of = sent_.find({pipeline::step_kind::send_activation, e.chunk, e.micro_batch});
          of != sent_.end())
        drop(of, std::next(of));
    if (where_ == messages_ || where_->holds_messages()) return m.value;
    const state_ptr value = state_like(*m.value, where_);
    copy_rows(value, 0, m.value, 0, value->extents.size());
    return value;
  }

  /// Waits until everything has been sent.
  void complete() { drop(sent_.begin(), sent_.end()); }

 private:
  struct message {
    state_ptr value;
    work in_flight;
  };
  using message_key = std::tuple<pipeline::step_kind, int, int>;
  using message_map = std::map<message_key, message>;

  /// Waits until these messages are sent.
  void drop(message_map::iterator from, message_map::iterator to) {
    for (auto m = from; m != to; ++m) m->second.in_flight.wait();
    sent_.erase(from, to);
  }
  static message_key key(const pipeline::step& e) { return {e.kind, e.chunk, e.micro_batch}; }
  /// Equal on both sides: of the boundary between two chunks, and of the direction.
  static int tag(const pipeline::step& e) {
    const int lower = std::min(e.chunk, pipeline::detail::peer_chunk(e));
    const bool up =
        e.kind == pipeline::step_kind::send_activation || e.kind == pipeline::step_kind::receive_activation;
    return 2 * lower + (up ? 0 : 1);
  }
  /// With a label that is equal on both sides.
  static comm_options labelled(const pipeline::step& e, comm_options o) {
    const bool up = tag(e) % 2 == 0;
    o.label = std::string(up ? "activation" : "gradient") + " of chunk " +
              std::to_string(std::min(e.chunk, pipeline::detail::peer_chunk(e))) + ", micro-batch " +
              std::to_string(e.micro_batch);
    return o;
  }

  communicator* stages_;
  device where_, messages_;
  message_map sent_, coming_;
};

/// Sets the elements of `t` to those of stage `from`. Collective.
inline void share_elements(communicator& stages, const state_ptr& t, int from, const comm_options& o) {
  const state_ptr message = reachable(message_device(t->where, &stages), t);
  stages.broadcast(elements_of(*message), from, o).wait();
  if (message != t && from != stages.rank()) copy_rows(t, 0, message, 0, t->extents.size());
}

}  // namespace weft::parallel
