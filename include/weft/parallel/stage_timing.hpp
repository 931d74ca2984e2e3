// SPDX-License-Identifier: MIT
// The measured times of all stages of a pipeline, on one clock.
//
//   const pipeline::timing t = measured_timing(run);            // of the last step; collective
//   std::ofstream("timeline.svg") << pipeline::timeline_svg(t.records, {.unit = "ms", .time_scale = 1e3});
#pragma once

#include <algorithm>
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
/// each rank several times, and the answer that came back soonest counts. Off by half of that round trip at
/// most. Collective.
inline double clock_offset(communicator& ranks, const comm_options& o) {
  constexpr int tries = 8, tag = 0;
  std::vector<double> time(1);
  double offset = 0, soonest = 1e300;
  for (int other = 1; other < ranks.size(); ++other)
    for (int i = 0; i < tries; ++i) {
      if (ranks.rank() == 0) {
        ranks.receive(time, other, tag, o).wait();
        time[0] = steady_seconds();
        ranks.send(time, other, tag, o).wait();
      } else if (ranks.rank() == other) {
        const double asked = steady_seconds();
        ranks.send(time, 0, tag, o).wait();
        ranks.receive(time, 0, tag, o).wait();
        const double now = steady_seconds();
        if (now - asked >= soonest) continue;
        soonest = now - asked;
        offset = time[0] - (asked + now) / 2;
      }
    }
  return offset;
}

/// The records of all ranks, in rank order, with `shift` added to the times of this rank. Collective.
inline std::vector<pipeline::record> all_records(communicator& ranks,
                                                 const std::vector<pipeline::record>& own, double shift,
                                                 const comm_options& o) {
  constexpr std::size_t fields = 6;
  std::vector<double> mine;
  for (const pipeline::record& r : own)
    for (const double field :
         {static_cast<double>(r.stage), static_cast<double>(r.kind), static_cast<double>(r.chunk),
          static_cast<double>(r.micro_batch), r.start + shift, r.end + shift})
      mine.push_back(field);
  std::vector<std::int64_t> size{static_cast<std::int64_t>(mine.size())};
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(ranks.size()));
  ranks.all_gather(size, sizes, {}, o).wait();
  std::vector<double> all(
      static_cast<std::size_t>(operation::sum_of(rank_counts(sizes.begin(), sizes.end()))));
  ranks.all_gather(mine, all, rank_counts(sizes.begin(), sizes.end()), o).wait();
  std::vector<pipeline::record> records;
  for (std::size_t i = 0; i < all.size(); i += fields)
    records.push_back({static_cast<int>(all[i]), static_cast<pipeline::step_kind>(all[i + 1]),
                       static_cast<int>(all[i + 2]), static_cast<int>(all[i + 3]), all[i + 4], all[i + 5]});
  return records;
}

/// Measured records as the result of a simulation: times begin at 0.
inline pipeline::timing timing_of(std::vector<pipeline::record> records, int stages) {
  pipeline::timing t;
  t.stages.resize(static_cast<std::size_t>(stages));
  double begin = records.empty() ? 0 : records.front().start;
  for (const pipeline::record& r : records) begin = std::min(begin, r.start);
  for (pipeline::record& r : records) {
    r.start -= begin;
    r.end -= begin;
    if (pipeline::is_message(r.kind)) continue;
    auto& s = t.stages[static_cast<std::size_t>(r.stage)];
    if (s.busy == 0) s.first = r.start;
    s.busy += r.end - r.start;
    s.last = std::max(s.last, r.end);
    t.makespan = std::max(t.makespan, r.end);
  }
  t.records = std::move(records);
  return t;
}
}  // namespace detail

/// The times of the last step on all stages that hold this rank's copy of the model, `run` being a
/// pipeline_run, in seconds since the first of them began. Clocks are compared by messages, so that stages on
/// different machines are off by half a round trip at most. Collective among the stages.
template <class Run>
pipeline::timing measured_timing(const Run& run) {
  communicator& stages = run.stages();
  const comm_options o{.label = "timeline", .timeout = run.options().timeout, .control = true};
  const double shift = detail::steady_seconds(run.began()) + detail::clock_offset(stages, o);
  return detail::timing_of(detail::all_records(stages, run.records(), shift, o), stages.size());
}

}  // namespace weft
