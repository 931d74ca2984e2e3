// SPDX-License-Identifier: MIT
// The texts for sums of rows by index: device/sorted_rows.hpp explains how the work is divided.
//
// A key is an index with the position of its row in the lower half. So all keys are different and have one
// order, in which the rows of an index keep theirs. A row with an invalid index has the key of the index
// after the last one.
#pragma once

#include <weft/shape/shape.hpp>

namespace weft::gpu {

/// How many keys an item of merge_keys_text writes; a power of two, which divides chunks.
inline constexpr index_t merged_by_item = 16;

/// Each item is one element of the result.
inline constexpr const char* zero_text = R"(
    out0_store(item, 0);)";

/// Each item is one index of a row without elements.
inline constexpr const char* checked_sum_row_text = R"(
    long row = in0_load(in0_offset(item));
    if (row < 0 || row >= out0_extent(0)) fault();)";

/// Each item is one column of the rows, which are added in memory.
inline constexpr const char* index_add_text = R"(
    for (long n = 0; n < in0_size; ++n) {
      long row = in0_load(in0_offset(n));
      if (row < 0 || row >= out0_extent(0)) { fault(); continue; }
      long at = row * P.items + item;
      out0_store(at, out0_load(at) + in1_load(in1_offset(n * P.items + item)));
    })";

/// Common definitions of the texts below. SORTED(p) are the keys after p passes; an item of sums is a column
/// of a tile.
inline constexpr const char* sorted_keys_text = R"(
#define SORTED(p) ((GLOBAL ulong*)scratch + (p) % 2 * in0_size)
#define ROW(key) ((long)((key) >> 32))
#define ITEM_OF_TILE                                                   \
    long count = in0_size, columns = 1, tile, column;                  \
    GLOBAL const ulong* keys = SORTED(pass);                           \
    GLOBAL out0_t* partial = (GLOBAL out0_t*)(scratch + 16 * count);   \
    for (int d = 1; d < out0_order; ++d) columns *= out0_extent(d);    \
    tile = item / columns;                                             \
    column = item % columns;
#define STORE_SUM(row, sum)                                            \
    {                                                                  \
      long to = (row) * columns + column;                              \
      out0_store(to, out0_adds ? out0_load(to) + (sum) : (sum));       \
    }
)";

/// Each task is a chunk of keys, which a group sorts in the memory that it shares (a bitonic sort).
inline constexpr const char* sort_chunks_text = R"(
NATIVE_KERNEL {
  SHARED_MEMORY ulong keys[CHUNK];
  int me = (int)LOCAL_ID;
  long count = in0_size;
  for (long task = GROUP_ID; task < tasks; task += GROUPS) {
    long first = task * CHUNK;
    for (int i = me; i < CHUNK; i += GROUP_SIZE) {
      ulong key = ~(ulong)0;
      if (first + i < count) {
        long row = in0_load(in0_offset(first + i));
        if (row < 0 || row >= out0_extent(0)) {
          fault();
          row = out0_extent(0);
        }
        key = (ulong)row << 32 | (ulong)(first + i);
      }
      keys[i] = key;
    }
    BARRIER;
    for (int size = 2; size <= CHUNK; size *= 2)
      for (int apart = size / 2; apart > 0; apart /= 2) {
        for (int e = me; e < CHUNK / 2; e += GROUP_SIZE) {
          int i = 2 * e - (e & (apart - 1)), j = i + apart;
          ulong a = keys[i], b = keys[j];
          if ((a > b) == ((i & size) == 0)) {
            keys[i] = b;
            keys[j] = a;
          }
        }
        BARRIER;
      }
    for (int i = me; i < CHUNK; i += GROUP_SIZE)
      if (first + i < count) SORTED(0)[first + i] = keys[i];
    BARRIER;
  }
}
)";

/// Each item is merged_by_item keys of two lists that are merged. Bisection finds where they begin in both
/// lists.
inline constexpr const char* merge_keys_text = R"(
    long count = in0_size, length = (long)CHUNK << pass, begin = item * MERGED, end, low, high, i, j;
    long start = begin / (2 * length) * (2 * length), before = begin - start;
    long middle = start + length < count ? start + length : count;
    long last = middle + length < count ? middle + length : count;
    GLOBAL const ulong* left = SORTED(pass) + start;
    GLOBAL const ulong* right = SORTED(pass) + middle;
    GLOBAL ulong* to = SORTED(pass + 1);
    low = before > last - middle ? before - (last - middle) : 0;
    high = before < middle - start ? before : middle - start;
    while (low < high) {
      long guess = (low + high) / 2;
      if (left[guess] < right[before - 1 - guess]) low = guess + 1;
      else high = guess;
    }
    i = low;
    j = before - low;
    end = begin + MERGED < last ? begin + MERGED : last;
    for (long k = begin; k < end; ++k) {
      int from_left = j >= last - middle || (i < middle - start && left[i] < right[j]);
      to[k] = from_left ? left[i++] : right[j++];
    })";

/// Each item sums a column of a tile of sorted rows, index by index.
inline constexpr const char* sum_tiles_text = R"(
    ITEM_OF_TILE
    long first = tile * TILE, last = first + TILE < count ? first + TILE : count, at = 0, rest = column;
    long row = ROW(keys[first]), next;
    int begins = first == 0 || ROW(keys[first - 1]) != row;
    out0_t sum = 0;
    for (int d = in1_order; d-- > in0_order;) {
      at += rest % in1_extent(d) * in1_stride(d);
      rest /= in1_extent(d);
    }
    for (long k = first; k < last; ++k) {
      uint n = (uint)keys[k];
      long from = at;
      for (int d = in0_order; d-- > 0;) {
        from += n % (uint)in1_extent(d) * in1_stride(d);
        n /= (uint)in1_extent(d);
      }
      sum += in1_load(from);
      next = k + 1 < count ? ROW(keys[k + 1]) : -1;
      if (next == row && k + 1 < last) continue;
      if (row == out0_extent(0)) {
      } else if (begins && next != row) STORE_SUM(row, sum)
      else partial[(2 * tile + begins) * columns + column] = sum;
      row = next;
      begins = 1;
      sum = 0;
    })";

/// Each item is a column of a tile. It adds up the sums of an index whose rows begin in this tile and
/// continue in the next one.
inline constexpr const char* join_tiles_text = R"(
    ITEM_OF_TILE
    long first = tile * TILE, last = first + TILE;
    if (last >= count) continue;
    long row = ROW(keys[last - 1]);
    if (row == out0_extent(0) || ROW(keys[last]) != row) continue;
    if (first > 0 && ROW(keys[first - 1]) == row) continue;
    out0_t sum = partial[(2 * tile + 1) * columns + column];
    for (long t = tile + 1; t * TILE < count && ROW(keys[t * TILE]) == row; ++t)
      sum += partial[2 * t * columns + column];
    STORE_SUM(row, sum))";

}  // namespace weft::gpu
