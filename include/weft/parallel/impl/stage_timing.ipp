// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/stage_timing.hpp>.
#pragma once

#include <algorithm>

#include <weft/base/config.hpp>
#include <weft/parallel/stage_timing.hpp>

namespace weft {
namespace detail {

WEFT_DEFINE double clock_offset(communicator& ranks, const comm_options& o) {
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

WEFT_DEFINE std::vector<pipeline::record> all_records(communicator& ranks,
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
      static_cast<std::size_t>(operation::sum_of(rank_counts(sizes.data(), sizes.size()))));
  ranks.all_gather(mine, all, rank_counts(sizes.data(), sizes.size()), o).wait();
  std::vector<pipeline::record> records;
  for (std::size_t i = 0; i < all.size(); i += fields)
    records.push_back({static_cast<int>(all[i]), static_cast<pipeline::step_kind>(all[i + 1]),
                       static_cast<int>(all[i + 2]), static_cast<int>(all[i + 3]), all[i + 4], all[i + 5]});
  return records;
}

WEFT_DEFINE pipeline::timing timing_of(std::vector<pipeline::record> records, int stages) {
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
}  // namespace weft
