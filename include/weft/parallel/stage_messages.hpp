// SPDX-License-Identifier: MIT
// The messages between the stages of a pipeline: activations, and their gradients.
#pragma once

#include <deque>
#include <map>
#include <tuple>

#include <weft/parallel/schedule/schedule.hpp>
#include <weft/parallel/unit.hpp>

namespace weft::parallel {

/// Sends and receives of one stage. Neither waits: a received value is waited for when it is taken, and the
/// memory of a sent one is kept until its message is completed.
class stage_messages {
 public:
  stage_messages(communicator& stages, const device& where)
      : stages_(&stages), where_(where), messages_(message_device(where)) {}
  stage_messages(const stage_messages&) = delete;
  stage_messages& operator=(const stage_messages&) = delete;
  ~stage_messages() {
    for (const auto& s : sent_) s.second.finish();
    for (const auto& [key, r] : coming_) r.message_in_flight.finish();
  }

  /// Sends `value` as the message that the step describes.
  void send(const pipeline::schedule& s, const pipeline::step& e, const state_ptr& value, comm_options o) {
    while (!sent_.empty() && sent_.front().second.is_completed()) pop();
    const state_ptr message = reachable(messages_, value);
    sent_.emplace_back(message, work());
    sent_.back().second = stages_->send(elements_of(*message), pipeline::detail::peer_stage(s, e), tag(e),
                                        labelled(e, std::move(o)));
  }

  /// Starts to receive the message that the step describes, unless that has begun.
  void receive(const pipeline::schedule& s, const pipeline::step& e, const shape& extents, dtype type,
               comm_options o) {
    if (has(e)) return;
    const state_ptr message = make_state(messages_, extents, type);
    coming_.emplace(key(e), arrival{message, work()});
    coming_.at(key(e)).message_in_flight = stages_->receive(
        elements_of(*message), pipeline::detail::peer_stage(s, e), tag(e), labelled(e, std::move(o)));
  }
  bool has(const pipeline::step& e) const { return coming_.contains(key(e)); }

  /// Waits for a message that receive() has begun, and returns its value.
  state_ptr take(const pipeline::step& e) {
    const auto found = coming_.find(key(e));
    const arrival a = std::move(found->second);
    coming_.erase(found);
    a.message_in_flight.wait();
    if (where_ == messages_ || where_->holds_messages()) return a.value;
    const state_ptr value = make_state(where_, a.value->extents, a.value->type);
    copy_rows(value, 0, a.value, 0, value->extents.size());
    return value;
  }

  /// Waits until everything has been sent.
  void complete() {
    while (!sent_.empty()) {
      sent_.front().second.wait();
      pop();
    }
  }

 private:
  struct arrival {
    state_ptr value;
    work message_in_flight;
  };
  using message_key = std::tuple<pipeline::step_kind, int, int>;

  void pop() { sent_.pop_front(); }
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
  std::deque<std::pair<state_ptr, work>> sent_;
  std::map<message_key, arrival> coming_;
};

}  // namespace weft::parallel
