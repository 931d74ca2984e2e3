// SPDX-License-Identifier: MIT
// The measured times of all stages of a pipeline, on one clock.
//
//   const pipeline::timing t = measured_timing(run);            // of the last step; collective
//   std::ofstream("timeline.svg") << pipeline::timeline_svg(t.records, {.unit = "ms", .time_scale = 1e3});
#pragma once

#include <chrono>
#include <vector>

#include <weft/comm/communicator.hpp>
#include <weft/parallel/schedule/simulate.hpp>

namespace weft {

namespace detail {
inline double steady_seconds(std::chrono::steady_clock::time_point t = std::chrono::steady_clock::now()) {
  return std::chrono::duration<double>(t.time_since_epoch()).count();
}

/// The time of the clock of rank 0 minus that of this rank, in seconds (Cristian's algorithm): rank 0 answers
/// each rank several times, and the answer with the shortest round trip is used. The error is at most half of
/// that round trip. Collective.
double clock_offset(communicator& ranks, const comm_options& o);

/// The records of all ranks, in rank order, with `shift` added to the times of this rank. Collective.
std::vector<pipeline::record> all_records(communicator& ranks, const std::vector<pipeline::record>& own,
                                          double shift, const comm_options& o);

/// Measured records in the form of a simulation's result, with times that begin at 0.
pipeline::timing timing_of(std::vector<pipeline::record> records, int stages);
}  // namespace detail

/// The times of the last step on all stages that hold this rank's copy of the model, in seconds since the
/// first of them began; `run` is a pipeline_run. Clocks are compared by messages, so that the error between
/// machines is at most half a round trip. Collective among the stages.
template <class Run>
pipeline::timing measured_timing(const Run& run) {
  communicator& stages = run.stages();
  const comm_options o{.label = "timeline", .timeout = run.options().timeout, .control = true};
  const double shift = detail::steady_seconds(run.began()) + detail::clock_offset(stages, o);
  return detail::timing_of(detail::all_records(stages, run.records(), shift, o), stages.size());
}

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/stage_timing.ipp>
#endif
