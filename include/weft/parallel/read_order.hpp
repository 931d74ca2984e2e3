// SPDX-License-Identifier: MIT
// Predicts the order in which tapes read units, so that units can be gathered in advance.
//
// Micro-batches read the same units in the same order, in the forward and in the backward pass. Several may
// be in progress at once, as in pipelines, each at its own position of an order recorded earlier.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include <weft/run/execution_hooks.hpp>

namespace weft::parallel {

/// A read of members of a unit by a program.
struct read_event {
  int unit;
  runtime::pass during;
  std::vector<int> members;
  bool operator==(const read_event&) const = default;
};

/// Records the order in which programs read units, and predicts the next reads from earlier tapes.
class read_order {
 public:
  /// Records that a program reads `now`. Returns the reads that are expected to follow on its tape if it
  /// repeats a recorded order; valid until the next call.
  std::span<const read_event> follow(const runtime::purpose& why, read_event now);

  /// Keeps a unit gathered for the tape until let_go() or finish() of the tape. For a program without a tape:
  /// until any tape is finished.
  void hold(const runtime::purpose& why, int unit) {
    progress& c = progress_of(why.tape);
    if (!c.holds(unit)) c.held.push_back(unit);
  }
  void let_go(const runtime::purpose& why, int unit) { std::erase(progress_of(why.tape).held, unit); }
  /// Whether any tape holds the unit.
  bool held(int unit) const;

  /// Called after the backward pass through a tape: records its order of reads for later tapes.
  void finish(const runtime::tape_identity& tape);
  /// Removes all tapes. Recorded orders remain.
  void forget_tapes() { tapes_.clear(); }

 private:
  using order = std::vector<read_event>;

  /// The progress of a tape.
  struct progress {
    std::weak_ptr<const void> tape;  // empty for programs without a tape
    order events;
    const order* ahead = nullptr;  // the recorded order that it is expected to repeat
    std::size_t position = 0;      // in `ahead`, of the next read
    std::vector<int> held;

    bool holds(int unit) const { return std::find(held.begin(), held.end(), unit) != held.end(); }
  };

  progress& progress_of(const runtime::tape_identity* tape);
  order* order_from(const read_event& first) {
    for (const auto& w : orders_)
      if (w->front() == first) return w.get();
    return nullptr;
  }

  std::vector<progress> tapes_;                 // few: tapes with entries
  std::vector<std::unique_ptr<order>> orders_;  // recorded orders, distinguished by their first event
};

}  // namespace weft::parallel

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/read_order.ipp>
#endif
