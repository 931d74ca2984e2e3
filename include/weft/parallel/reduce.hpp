// SPDX-License-Identifier: MIT
// Reduces gradients over ranks, one unit at a time, during the backward pass.
//
// With sharded gradients, every backward pass reduces its gradients, and each rank accumulates its own rows;
// the number of messages in flight is bounded, so that slow messages do not accumulate. Otherwise each rank
// accumulates complete gradients, which are reduced after the last backward pass of a step.
#pragma once

#include <deque>

#include <weft/parallel/gradient_sum.hpp>
#include <weft/parallel/groups.hpp>
#include <weft/parallel/hook.hpp>
#include <weft/parallel/unit.hpp>

namespace weft::parallel {

/// Reduces gradients over ranks, one unit at a time, while the backward pass continues.
class gradient_reducer {
 public:
  [[gnu::cold]] gradient_reducer(std::vector<unit>& units, const rank_groups& groups,
                                 const parallel_options& o, const device& where);

  gradient_reducer(const gradient_reducer&) = delete;
  gradient_reducer& operator=(const gradient_reducer&) = delete;
  [[gnu::cold]] ~gradient_reducer();

  /// Takes the gradients of a unit, which a backward pass has completed. `last`: whether it is the last pass
  /// of the step.
  void take(int u, bool last);

  /// Waits until all reductions are complete, and stores the results as the gradients of the local
  /// parameters.
  void deliver();

  /// Drops all gradients that were taken and have not been delivered. Waits for messages in flight; the rest
  /// is not sent.
  void drop();
  /// Discards what the hook remembers. Waits for messages in flight, which use it.
  void reset_hook() {
    while (!under_way_.empty()) advance();
    for (state& s : states_) s.hook_memory.reset();
  }
  /// Lets backward passes add to the gradient of the member again.
  static void forget(member& m);

  void poll() {
    while (!under_way_.empty() && under_way_.front().message_in_flight.is_completed()) advance();
  }

  /// Size of the gradients that are kept until the step.
  index_t bytes() const;

 private:
  struct state {
    gradient_sum unsent;   // sum over backward passes, not sent yet
    gradient_sum reduced;  // sum over ranks, of the rows of this rank
    std::any hook_memory;
    bool is_ready = false;  // can be sent after the units before it
    bool was_sent = false;  // since the last delivery
  };
  struct reduction_step {
    int unit;
    state_ptr message, own;
    work message_in_flight;
    next_message next;  // starts the messages across replicas, one after another
  };

  state& at(int u) { return states_[static_cast<std::size_t>(u)]; }

  void start(int u, state_ptr message);
  /// Sends the units that are ready, in the order of `expected_`.
  void send_ready();
  /// Sends the rest, and records the units sent in this step as those expected in the next one.
  void send_rest();
  /// Starts the next message across replicas, if there is one.
  std::optional<work> send_across(reduction_step& r) {
    if (!r.next) r.next = messages_across(r);
    return r.next();
  }
  next_message messages_across(const reduction_step& r);

  /// Waits for the message of the first reduction in the queue and starts its next one. Processing in order
  /// ensures that all ranks start their messages in the same order.
  void advance();

  void set_gradients(int u, const state_ptr& reduced);

  static constexpr std::size_t most_under_way = 2;  // reductions in flight; bounds memory

  std::vector<unit>& units_;
  const rank_groups& groups_;
  device where_, messages_;
  gradient_hook hook_;
  dtype type_;  // dtype of messages
  bool reduces_each_, sends_;
  std::vector<state> states_;
  std::deque<reduction_step> under_way_;
  // If gradients are sent once per step: the units expected to have gradients, which are those of the
  // previous step. They are sent in this order, independently of the order in which a rank computes.
  std::vector<int> expected_;
  std::size_t next_ = 0;  // of expected_
};

}  // namespace weft::parallel

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/reduce.ipp>
#endif
