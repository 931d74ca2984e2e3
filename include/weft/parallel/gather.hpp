// SPDX-License-Identifier: MIT
// Gathers sharded parameters for the programs that read them.
//
// A unit is gathered by one message when it is read. Units that earlier tapes read next are prefetched
// (read_order.hpp). Gathered elements are freed when no tape with entries needs the unit any more.
#pragma once

#include <optional>

#include <weft/parallel/groups.hpp>
#include <weft/parallel/read_order.hpp>
#include <weft/parallel/unit.hpp>

namespace weft::parallel {

/// Gathers sharded parameters, one unit at a time, before programs read them, and releases them afterwards.
class parameter_gatherer {
 public:
  [[gnu::cold]] parameter_gatherer(std::vector<unit>& units, const rank_groups& groups,
                                   const parallel_options& o, const device& where);
  parameter_gatherer(const parameter_gatherer&) = delete;
  parameter_gatherer& operator=(const parameter_gatherer&) = delete;
  ~parameter_gatherer();

  /// Waits until these members of a unit are gathered.
  void unshard(int u, const std::vector<int>& read);

  /// Called when a program reads these members: starts gathering the units that are expected to be read next.
  void prefetch(int u, const runtime::purpose& why, const std::vector<int>& read);

  /// Called after a program that has read a unit.
  void release(int u, const runtime::purpose& why);
  /// Called after the backward pass through a tape.
  void finish(const runtime::tape_identity& tape);

  /// Frees gathered elements that no tape needs.
  void release_unused();

  /// Frees gathered elements; the local rows remain.
  void reshard(int u);

  /// Called after the local rows have changed: discards gathered elements. If all ranks keep all parameters,
  /// starts gathering the new values.
  void invalidate();

  void poll() {
    for (int u : coming_) at(u).coming->gather.is_completed();
  }

 private:
  /// A message in flight.
  struct arrival {
    work gather;
    message_layout layout;
    state_ptr own, message;
    std::vector<int> chosen;
  };
  struct state {
    std::vector<bool> present;  // members whose gathered elements are in memory
    std::optional<arrival> coming;
  };
  state& at(int u) { return states_[static_cast<std::size_t>(u)]; }

  std::vector<int> absent(int u, const std::vector<int>& of);

  void start(int u, const std::vector<int>& chosen);

  void arrive(int u);

  std::vector<unit>& units_;
  const rank_groups& groups_;
  device where_, messages_;
  int ahead_;
  bool apart_;  // gathered elements have separate memory
  bool keeps_;  // gathered elements are kept between the forward and backward pass
  dtype type_;  // dtype of messages
  std::vector<state> states_;
  std::vector<int> coming_;
  read_order order_;
};

}  // namespace weft::parallel

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/gather.ipp>
#endif
