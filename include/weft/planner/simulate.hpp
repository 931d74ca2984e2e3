// SPDX-License-Identifier: MIT
// When the ranks of a cluster do what their traces say.
//
//   const planner::step_times t = planner::simulate(c, traces);
//   t.seconds; t.ranks[0].waiting
//
// A rank executes its calls one after the other, beside its operations with other ranks. An operation starts
// when all of its ranks that are simulated have begun it and their links are free; a message when it is sent.
// Each rank has one link inside its machine and one to other machines, which carry one operation at a time,
// messages in both directions. Where a trace waits for an operation, the rank does. Where steps go on into
// each other, as gathers of updated parameters do, two are simulated and the time of the second is taken.
#pragma once

#include <span>
#include <vector>

#include <weft/planner/trace.hpp>

namespace weft::planner {

/// The time of a rank's step, in seconds: the mean of those that are traced.
struct rank_times {
  double computing = 0;  // of its device
  double waiting = 0;    // for other ranks, its device being idle: what communication is not hidden
  double end = 0;        // computing + waiting
};

/// The times of a step.
struct step_times {
  double seconds = 0;  // from one end of the last rank to the next
  std::vector<rank_times> ranks{};
};

/// The times of the ranks whose traces are given, each of another rank: all of a cluster, or some that stand
/// for the others, which are taken to begin operations when these do. Throws value_error if a figure of the
/// cluster is missing, comm_error that says who waits for what if ranks wait for each other. Cost: n log n in
/// the number of events.
step_times simulate(const cluster& c, std::span<const step_trace> traces);

}  // namespace weft::planner

#ifndef WEFT_COMPILED
#include <weft/planner/impl/simulate.ipp>
#endif
