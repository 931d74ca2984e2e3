// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/divided_positions.hpp>.
#pragma once

#include <algorithm>
#include <numeric>

#include <weft/base/config.hpp>
#include <weft/parallel/divided_positions.hpp>

namespace weft {
namespace parallel {

WEFT_DEFINE strided range_of(strided t, const position_range& of, int dim) {
  t.pointer = static_cast<char*>(t.pointer) + of.first * t.stride[dim] * size_of(t.type);
  t.extents[dim] = of.count;
  return t;
}

WEFT_DEFINE void divided_positions::check(const char* reader, const device& where, const shape& extents,
                                          index_t positions) const {
  if (where->computes() && message_device(where, ranks_.get()) != where)
    refuse<device_error>(
        {"weft: ", reader, ": on device ", where->name(), ": positions can be divided ", divided_devices});
  if (!division_)
    refuse<usage_error>(
        {"weft: ", reader,
         ": the number of positions of all ranks is not known: call run.part_of_context(length) first"});
  if (positions != division_->count(rank()))
    refuse<usage_error>({"weft: ", reader, ": an operand of shape ", to_string(extents), " has ", positions,
                         " positions, but this rank has ", division_->count(rank()), " of ",
                         division_->length(),
                         ", the length last given to run.part_of_context. Programs and their backward passes "
                         "must use sequences of that length, and ranks that divide positions cannot attend "
                         "to keys that each of them has whole"});
}

WEFT_DEFINE void divided_positions::gather_choices(const device& where, runtime::row_choices& rows,
                                                   const shape& operand, const comm_options& o) {
  if (size() == 1) return;
  const int dim = operand.order > 2 ? 1 : 0;
  check("experts", where, operand, operand[dim]);
  index_t of_position = 1;
  for (int d = dim + 1; d + 1 < operand.order; ++d) of_position *= operand[d];
  const index_t batch = dim ? operand[0] : 1, row = of_position * rows.per_row;
  rank_counts counts;
  for (int r = 0; r < size(); ++r) counts.push_back(batch * division_->count(r) * row);
  const index_t all = batch * division_->length() * row;
  std::vector<std::int64_t> by_rank(static_cast<std::size_t>(all), 0);
  const const_elements mine(rows.chosen.data(), static_cast<index_t>(rows.chosen.size()), dtype::i64);
  ranks_->all_gather(mine, {by_rank.data(), all, dtype::i64}, counts, o).wait();
  arrange(rows, by_rank, batch, of_position);
}

WEFT_DEFINE void divided_positions::arrange(runtime::row_choices& rows, std::span<const std::int64_t> by_rank,
                                            index_t batch, index_t of_position) const {
  const index_t choices = of_position * rows.per_row;
  rows.chosen.resize(by_rank.size());
  rows.here.assign(static_cast<std::size_t>(batch * division_->length() * of_position), -1);
  auto from = by_rank.begin();
  for (int r = 0; r < size(); ++r) {
    const std::vector<std::int32_t> positions = division_->positions(r);
    index_t number = 0;
    for (index_t b = 0; b < batch; ++b)
      for (const std::int32_t p : positions) {
        const index_t at = b * division_->length() + p;
        std::copy_n(from, choices, rows.chosen.begin() + at * choices);
        from += choices;
        if (r != rank()) continue;
        const auto first = rows.here.begin() + at * of_position;
        std::iota(first, first + of_position, number);
        number += of_position;
      }
  }
}

}  // namespace parallel
}  // namespace weft
