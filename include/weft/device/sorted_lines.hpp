// SPDX-License-Identifier: MIT
// How devices with groups of work items sort long lines (native_op::argsort).
//
// The positions of the elements of a line are sorted first in chunks in group memory; then pairs of sorted
// lists are merged in passes. Equal elements are ordered by position, so the order is that of a stable sort.
// In a short line, each element counts those that precede it.
#pragma once

#include <weft/device/native.hpp>

namespace weft {

/// The parts of this computation, and the memory that it takes: two lists of positions of 4 bytes.
struct sorted_lines {
  static constexpr index_t chunk = 1024;
  static constexpr index_t least = 512;              // elements of a line that is sorted in this way
  static constexpr index_t most = index_t{1} << 31;  // 4 bytes hold a position
  index_t length = 0, lines = 0, chunks = 0, passes = 0, scratch_bytes = 0;  // chunks: of a line

  explicit sorted_lines(const native_operands& o) : length(o.in[0].extents[static_cast<int>(o.at[0])]) {
    const index_t size = o.in[0].size();
    if (length < least || length >= most || size == 0) return;
    lines = size / length;
    chunks = (length + chunk - 1) / chunk;
    while (chunk << passes < length) ++passes;
    scratch_bytes = 2 * 4 * size;
  }
  bool sorts() const { return scratch_bytes > 0; }
};

}  // namespace weft
