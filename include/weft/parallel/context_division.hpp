// SPDX-License-Identifier: MIT
// Which positions of a sequence each rank has with context parallelism.
//
//   const context_division all(1024, 4);
//   all.count(rank);                        // positions of a rank
//   all.early(rank), all.late(rank);        // the two ranges of which they consist
//
// With causal attention, late positions attend to more keys than early ones. So the sequence is cut into two
// chunks per rank, and rank r has chunk r from the start and chunk r from the end, which gives every rank the
// same amount of work (zig-zag; Zhu, "ring-flash-attention", 2024).
#pragma once

#include <string>
#include <vector>

#include <weft/base/error.hpp>
#include <weft/shape/placement.hpp>

namespace weft::parallel {

/// Positions [first, first + count).
struct position_range {
  index_t first = 0, count = 0;
};

/// The positions of a sequence of `length` positions that each of `ranks` ranks has. The sizes of chunks
/// differ by at most one position.
class context_division {
 public:
  /// Throws usage_error if a rank would have no position.
  context_division(index_t length, int ranks) : length_(length), ranks_(ranks) {
    if (length < ranks)
      refuse<usage_error>(
          {"weft: context: ", length, " positions cannot be divided among ", ranks, " ranks"});
  }

  index_t length() const { return length_; }
  int ranks() const { return ranks_; }

  /// The two ranges of a rank. All positions of the first are before those of the second.
  position_range early(int rank) const { return chunk(rank); }
  position_range late(int rank) const { return chunk(2 * ranks_ - 1 - rank); }
  index_t count(int rank) const { return early(rank).count + late(rank).count; }

  /// The positions of a rank, in its order.
  std::vector<std::int32_t> positions(int rank) const {
    std::vector<std::int32_t> all;
    for (const position_range& of : {early(rank), late(rank)})
      for (index_t i = 0; i < of.count; ++i) all.push_back(static_cast<std::int32_t>(of.first + i));
    return all;
  }

 private:
  position_range chunk(int i) const {
    return {first_of_part(length_, 2 * ranks_, i), count_of_part(length_, 2 * ranks_, i)};
  }

  index_t length_;
  int ranks_;
};

}  // namespace weft::parallel
