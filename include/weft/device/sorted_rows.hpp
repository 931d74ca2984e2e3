// SPDX-License-Identifier: MIT
// How devices with groups of work items add up rows by index (native_op::index_add).
//
// The indices are sorted together with their positions: first in chunks in group memory; then pairs of sorted
// lists are merged in passes. Tiles of the sorted positions are added up in parallel; where the rows of one
// index extend over several tiles, their partial sums are added in the order of the tiles. So the order of
// every sum depends only on the indices, and no atomic additions are used.
#pragma once

#include <algorithm>

#include <weft/base/dtype.hpp>
#include <weft/device/native.hpp>

namespace weft {

/// The parts of this computation, and the memory that it takes: two lists of keys of 8 bytes, and for each
/// tile one sum that began in an earlier tile and one that continues in the next tile.
struct sorted_rows {
  static constexpr index_t chunk = 1024, tile = 64;
  static constexpr index_t least = 32;               // fewer rows are added one after the other
  static constexpr index_t most = index_t{1} << 31;  // half a key holds an index or a position
  index_t count = 0, columns = 0, tiles = 0, passes = 0, scratch_bytes = 0;

  explicit sorted_rows(const native_operands& o) : count(o.in[0].size()), columns(1) {
    const shape& out = o.out[0].extents;
    for (int d = 1; d < out.order; ++d) columns *= out[d];
    if (count <= least || columns == 0 || count >= most || out[0] >= most) return;
    tiles = (count + tile - 1) / tile;
    while (chunk << passes < count) ++passes;
    scratch_bytes = 2 * (count * 8 + tiles * columns * std::max<index_t>(size_of(o.out[0].type), 4));
  }
  bool sorts() const { return scratch_bytes > 0; }
};

}  // namespace weft
