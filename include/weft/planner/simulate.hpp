// SPDX-License-Identifier: MIT
// Simulates the times at which the ranks of a cluster execute their traces.
//
//   const planner::step_times t = planner::simulate(c, traces);
//   t.seconds; t.ranks[0].waiting
//
// A rank executes its calls one after the other, concurrently with its operations with other ranks. An
// operation starts when all of its simulated ranks have begun it and their links are free; a message starts
// when it is sent. Each rank has one link within its machine and one to other machines; each link carries one
// operation at a time, messages in both directions. A rank waits for an operation where its trace does. If
// consecutive steps overlap, as with gathers of updated parameters, two steps are simulated and the time of
// the second is used.
#pragma once

#include <span>
#include <vector>

#include <weft/planner/trace.hpp>

namespace weft::planner {

/// The time of a rank's step, in seconds: the mean of the traced steps.
struct rank_times {
  double computing = 0;  // time in which its device computes
  double waiting = 0;    // device idle, waiting for other ranks: exposed communication
  double end = 0;        // computing + waiting
};

/// The times of a step.
struct step_times {
  double seconds = 0;  // from the end of one step on the last rank to the end of the next
  std::vector<rank_times> ranks{};
};

/// The times of the ranks with the given traces, one trace per rank: all ranks of the cluster, or some that
/// represent the others, which are assumed to begin operations at the same times. Throws value_error if a
/// figure of the cluster is missing; comm_error, naming what each rank waits for, if ranks wait for each
/// other. Cost: n log n in the number of events.
step_times simulate(const cluster& c, std::span<const step_trace> traces);

}  // namespace weft::planner

#ifndef WEFT_COMPILED
#include <weft/planner/impl/simulate.ipp>
#endif
