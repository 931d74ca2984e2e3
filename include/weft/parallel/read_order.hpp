// SPDX-License-Identifier: MIT
// In which order tapes read units, so that what comes next can be gathered ahead.
//
// Micro-batches read the same units in the same order, forward and backward. Several of them may be under way
// at once, as in pipelines: each tape is somewhere else on a way that one before it has gone.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include <weft/run/execution_hooks.hpp>

namespace weft::parallel {

/// Members of a unit that a program reads, as something that may come again.
struct read_event {
  int unit;
  run::pass during;
  std::vector<int> members;
  bool operator==(const read_event&) const = default;
};

/// Records the order in which programs read units, and predicts the next reads from earlier tapes.
class read_order {
 public:
  /// A program reads `now`. What its tape will read after it, if it goes on as one before did; valid until
  /// the next call.
  std::span<const read_event> follow(const run::purpose& why, read_event now) {
    course& c = course_of(why.tape);
    if (!c.ahead || c.position >= c.ahead->size() || (*c.ahead)[c.position] != now) {
      c.ahead = way_from(now);
      c.position = 0;
    }
    if (why.tape) c.events.push_back(std::move(now));  // what no tape remembers never ends
    if (!c.ahead) return {};
    return std::span(*c.ahead).subspan(++c.position);
  }

  /// The tape wants to find a unit gathered again, until it lets go of it or is finished. A program without a
  /// tape wants so until any tape is finished.
  void hold(const run::purpose& why, int unit) {
    course& c = course_of(why.tape);
    if (!c.holds(unit)) c.held.push_back(unit);
  }
  void let_go(const run::purpose& why, int unit) { std::erase(course_of(why.tape).held, unit); }
  /// Whether any tape holds the unit.
  bool held(int unit) const {
    return std::any_of(courses_.begin(), courses_.end(), [&](const course& c) { return c.holds(unit); });
  }

  /// Backward has gone through the tape: the next ones are expected to go its way.
  void finish(const run::tape_identity& tape) {
    for (course& c : courses_) {
      if (!tape || c.tape.lock() != tape || c.events.empty()) continue;
      if (way* known = way_from(c.events.front())) *known = std::move(c.events);
      else ways_.push_back(std::make_unique<way>(std::move(c.events)));
    }
    std::erase_if(courses_, [&](const course& c) { return c.tape.expired() || c.tape.lock() == tape; });
  }
  /// All tapes are forgotten, the ways they have gone are not.
  void forget_tapes() { courses_.clear(); }

 private:
  using way = std::vector<read_event>;

  /// How far a tape has come.
  struct course {
    std::weak_ptr<const void> tape;  // empty for programs that no tape remembers
    way events;
    const way* ahead = nullptr;  // the way it is expected to go
    std::size_t position = 0;    // on it, of what is read next
    std::vector<int> held;

    bool holds(int unit) const { return std::find(held.begin(), held.end(), unit) != held.end(); }
  };

  course& course_of(const run::tape_identity* tape) {
    for (course& c : courses_)
      if (tape ? c.tape.lock() == *tape : c.tape.expired()) return c;
    courses_.push_back({tape ? *tape : run::tape_identity(), {}, nullptr, 0, {}});
    return courses_.back();
  }
  way* way_from(const read_event& first) {
    for (const auto& w : ways_)
      if (w->front() == first) return w.get();
    return nullptr;
  }

  std::vector<course> courses_;             // of tapes that hold entries, few
  std::vector<std::unique_ptr<way>> ways_;  // by what they begin with
};

}  // namespace weft::parallel
