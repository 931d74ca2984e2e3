// SPDX-License-Identifier: MIT
// The texts that sort long lines: device/sorted_lines.hpp explains how the work is divided.
#pragma once

#include <weft/shape/shape.hpp>

namespace weft::gpu {

/// How many positions an item of merge_positions_text writes; a power of two, which divides chunks.
inline constexpr index_t positions_by_item = 16;

/// Common definitions of the texts below. SORTED(p) are the positions after p passes, line by line.
/// PRECEDES(x, i, y, j): whether element x at position i precedes y at j; NaN is larger than every number.
inline constexpr const char* sorted_positions_text = R"(
#define LINE_LENGTH in0_extent((int)attribute(0))
#define SORTED(p) ((GLOBAL uint*)scratch + (p) % 2 * in0_size)
#define LINE(number)                                                                          \
    int dim = (int)attribute(0);                                                              \
    long line = number, rest = line, at = 0, length = LINE_LENGTH;                            \
    for (int d = in0_order; d-- > 0;)                                                         \
      if (d != dim) {                                                                         \
        at += rest % in0_extent(d) * in0_stride(d);                                           \
        rest /= in0_extent(d);                                                                \
      }
#define ELEMENT(i) in0_load(at + (long)(i) * in0_stride(dim))
#define BELOW(x, y) ((x) < (y) || ((y) != (y) && (x) == (x)))
#define PRECEDES(x, i, y, j)                                                                  \
    (BELOW(x, y) ? !attribute(1) : BELOW(y, x) ? attribute(1) != 0 : (i) < (j))
)";

/// Each task is a chunk of a line, whose positions a group sorts in the memory that it shares (a bitonic
/// sort). Positions beyond the end of the line come last.
inline constexpr const char* sort_line_chunks_text = R"(
NATIVE_KERNEL {
  SHARED_MEMORY in0_t elements[CHUNK];
  SHARED_MEMORY uint positions[CHUNK];
  int me = (int)LOCAL_ID;
  long chunks = (LINE_LENGTH + CHUNK - 1) / CHUNK;
  for (long task = GROUP_ID; task < tasks; task += GROUPS) {
    LINE(task / chunks)
    long first = task % chunks * CHUNK;
    for (int i = me; i < CHUNK; i += GROUP_SIZE) {
      positions[i] = (uint)(first + i);
      elements[i] = first + i < length ? ELEMENT(first + i) : 0;
    }
    BARRIER;
    for (int size = 2; size <= CHUNK; size *= 2)
      for (int apart = size / 2; apart > 0; apart /= 2) {
        for (int e = me; e < CHUNK / 2; e += GROUP_SIZE) {
          int i = 2 * e - (e & (apart - 1)), j = i + apart;
          in0_t x = elements[i], y = elements[j];
          uint p = positions[i], q = positions[j];
          int precedes = p < length && q < length ? PRECEDES(x, p, y, q) : p < q;
          if (precedes != ((i & size) == 0)) {
            elements[i] = y;
            elements[j] = x;
            positions[i] = q;
            positions[j] = p;
          }
        }
        BARRIER;
      }
    for (int i = me; i < CHUNK; i += GROUP_SIZE)
      if (first + i < length) SORTED(0)[line * length + first + i] = positions[i];
    BARRIER;
  }
}
)";

/// Each item is MERGED positions of two lists that are merged. Bisection finds where they begin in both
/// lists.
inline constexpr const char* merge_positions_text = R"(
    long items = (LINE_LENGTH + MERGED - 1) / MERGED;
    LINE(item / items)
    long list = (long)CHUNK << pass, begin = item % items * MERGED, end, low, high, i, j;
    long start = begin / (2 * list) * (2 * list), before = begin - start;
    long middle = start + list < length ? start + list : length;
    long last = middle + list < length ? middle + list : length;
    GLOBAL const uint* left = SORTED(pass) + line * length + start;
    GLOBAL const uint* right = SORTED(pass) + line * length + middle;
    GLOBAL uint* to = SORTED(pass + 1) + line * length;
    low = before > last - middle ? before - (last - middle) : 0;
    high = before < middle - start ? before : middle - start;
    while (low < high) {
      long guess = (low + high) / 2;
      uint p = left[guess], q = right[before - 1 - guess];
      in0_t x = ELEMENT(p), y = ELEMENT(q);
      if (PRECEDES(x, p, y, q)) low = guess + 1;
      else high = guess;
    }
    i = low;
    j = before - low;
    end = begin + MERGED < last ? begin + MERGED : last;
    for (long k = begin; k < end; ++k) {
      int from_left = j >= last - middle;
      if (!from_left && i < middle - start) {
        uint p = left[i], q = right[j];
        in0_t x = ELEMENT(p), y = ELEMENT(q);
        from_left = PRECEDES(x, p, y, q);
      }
      to[k] = from_left ? left[i++] : right[j++];
    })";

/// Each item is an element of the result, which has the first positions of each line.
inline constexpr const char* store_positions_text = R"(
    int dim = (int)attribute(0);
    long rest = item, line = 0, lines = 1, place = 0;
    for (int d = out0_order; d-- > 0;) {
      long i = rest % out0_extent(d);
      rest /= out0_extent(d);
      if (d == dim) place = i;
      else {
        line += i * lines;
        lines *= out0_extent(d);
      }
    }
    out0_store(out0_offset(item), SORTED(pass)[line * LINE_LENGTH + place]);)";

}  // namespace weft::gpu
