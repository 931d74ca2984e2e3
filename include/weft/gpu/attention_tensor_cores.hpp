// SPDX-License-Identifier: MIT
// Attention in tiles (Dao, "FlashAttention-2", 2023) on tensor cores: texts in the vocabulary of
// tensor_core_words.hpp, for bf16 and f16 with sums and statistics in f32.
//
// A group owns a tile of rows, and each of its warps 16 MT rows, whose results stay in registers. The group
// visits the tiles of columns that its rows attend to; while it computes with one, the next is copied. A lane
// has the same elements of a sum of products as of a left factor, so that scores become weights in registers
// and are never stored. Tiles are [row][feature] in shared memory, laid out so that eight rows of 16 bytes
// have no bank conflicts. With WARPGROUPS, four warps multiply together (warpgroup_words.hpp), and MT is 1.
// Nothing is accumulated in device memory and sums are formed in a fixed order, so results are deterministic.
//
// DEPTH (features, padded with zeros to a multiple of 16), MT, COLUMNS and PART (number of columns whose
// scores are computed at a time) are constants of the kernel; ADD_PRODUCT, PAIR_OF and NUMBER_OF are the
// words for its type: attention_kernels.hpp. Positions are 32-bit numbers, so that no text divides 64-bit
// numbers.
#pragma once

namespace weft::gpu {

/// The functions of all three kernels.
inline constexpr const char* attention_tensor_core_text = R"(
#define ROWS (MT * GROUP_SIZE / 2)
#define LD (DEPTH % 64 == 0 ? DEPTH : DEPTH + 8)
#define CHUNKS (DEPTH / 8)
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")
#define LOG2_E 1.44269504f
#define LN_2 0.693147181f
#define LOWEST FLOAT_OF_BITS(0xff7fffffu)
#define HIDDEN FLOAT_OF_BITS(0xff800000u)

/* Element `feature` of a row of a tile. */
FUNCTION int place(int row, int feature) {
#ifdef WARPGROUPS
  return row / 8 * 8 * DEPTH + feature / 64 * 512 + row % 8 * 64 + (feature % 64 ^ row % 8 * 8);
#else
  return row * LD + (DEPTH % 64 == 0 ? feature / 64 * 64 + (feature % 64 ^ row % 8 * 8) : feature);
#endif
}

/* The rows of one head in device memory, and whether 16 bytes of them can be accessed at once. */
struct head_rows {
  ushort* at;
  long row, feature;
  int count, features;
  bool in_vectors;
};
FUNCTION head_rows rows_of(ushort* at, long row, long feature, int count, int features) {
  bool in_vectors = feature == 1 && row % 8 == 0 && (ulong)at % 16 == 0;
  return {at, row, feature, count, features, in_vectors};
}
#define HEAD(x, b, h, count) \
  rows_of(x##_data + (b) * x##_stride(0) + (h) * x##_stride(2), x##_stride(1), x##_stride(3), count, features)
FUNCTION int features_at(const head_rows& x, int row, int feature) {
  return row < x.count ? max(min(x.features - feature, 8), 0) : 0;
}

/* Begins to copy `size` rows from `first` on to a tile, with zeros where there are no rows or features. */
template <int size>
FUNCTION void begin_tile(ushort* tile, const head_rows& x, int first) {
#ifdef WARPGROUPS /* warps have no registers left for it */
  /* All of it is there: a thread copies the same features of rows that are `step` apart. */
  const int step = GROUP_SIZE / CHUNKS;
  if (x.in_vectors && x.features == DEPTH && first + size <= x.count && size % step == 0) {
    int r = (int)LOCAL_ID / CHUNKS, d = (int)LOCAL_ID % CHUNKS * 8;
    uint to = shared_address(tile + place(r, d));
    const ushort* from = x.at + (first + r) * x.row + d;
    UNROLL for (int i = 0; i < size / step; ++i, from += step * x.row)
      begin_copy_at(to + 16 * GROUP_SIZE * i, from, 16);
    return;
  }
#endif
  ROLLED for (int e = (int)LOCAL_ID; e < size * CHUNKS; e += GROUP_SIZE) {
    int r = e / CHUNKS, d = e % CHUNKS * 8, there = features_at(x, first + r, d);
    const ushort* from = there > 0 ? x.at + (first + r) * x.row + d * x.feature : x.at;
    ushort* to = tile + place(r, d);
    if (x.in_vectors) begin_copy(to, from, 2 * there);
    else
      ROLLED for (int i = 0; i < 8; ++i) to[i] = i < there ? from[i * x.feature] : 0;
  }
}
/* Copies a tile of results to rows from `first` on. */
FUNCTION void write_tile(const head_rows& x, int first, const ushort* tile) {
  ROLLED for (int e = (int)LOCAL_ID; e < ROWS * CHUNKS; e += GROUP_SIZE) {
    int r = e / CHUNKS, d = e % CHUNKS * 8, there = features_at(x, first + r, d);
    ushort* to = x.at + (first + r) * x.row + d * x.feature;
    const ushort* from = tile + place(r, d);
    if (x.in_vectors && there == 8) *(uint4*)to = *(const uint4*)from;
    else
      ROLLED for (int i = 0; i < there; ++i) to[i * x.feature] = from[i];
  }
}

/* The number of tiles of columns, row of the warp's results and column of its sums that a lane has; `e` is
   the number of an element of a fragment of sums. */
#define LANE ((int)LOCAL_ID % 32)
#define OWN_ROWS ((int)LOCAL_ID / 32 * 16 * MT)
#define ROW(m, e) (OWN_ROWS + 16 * (m) + LANE / 4 + (e) / 2 * 8)
#define COLUMN(n, e) (8 * (n) + LANE % 4 * 2 + (e) % 2)
#define FOR_SUMS(columns)                      \
  UNROLL for (int m = 0; m < MT; ++m)          \
    UNROLL for (int n = 0; n < (columns) / 8; ++n) \
      UNROLL for (int e = 0; e < 4; ++e)

/* The weights in columns 8 n to 8 n + 15, rounded, as a left factor. */
template <int N>
FUNCTION void set_factor(uint (&a)[4], const float (&weights)[N][4], int n) {
  UNROLL for (int i = 0; i < 4; ++i)
    a[i] = PAIR_OF(weights[n + i / 2][i % 2 * 2], weights[n + i / 2][i % 2 * 2 + 1]);
}

#ifdef WARPGROUPS
#define SHOW_TO_PRODUCTS show_to_products();
#define OWN_GROUP ((int)LOCAL_ID / 128 * 64)
#define NEXT_ROWS (16 * DEPTH)
/* sum += rows of this warp, of left, times rows of right. */
template <int N>
FUNCTION void add_products(float (&sum)[MT][N][4], const ushort* left, const ushort* right) {
  uint from_left = shared_address(left) + 2 * LD * OWN_GROUP, from_right = shared_address(right);
  begin_products();
  UNROLL for (int d = 0; d < DEPTH; d += 16) {
    int at = d / 64 * 1024 + d % 64 * 2;
    add_tile_products(sum[0], part_of_tile(from_left + at, NEXT_ROWS),
                         part_of_tile(from_right + at, NEXT_ROWS));
  }
  end_products();
}
/* sum += weights, rounded, times right. */
template <int N>
FUNCTION void add_weighted(float (&sum)[MT][CHUNKS][4], const float (&weights)[MT][N][4],
                           const ushort* right) {
  uint from_right = shared_address(right);
  uint a[N / 2][4];
  UNROLL for (int n = 0; n < N; n += 2) set_factor(a[n / 2], weights[0], n);
  begin_products();
  UNROLL for (int n = 0; n < N; n += 2)
    add_register_products(sum[0], a[n / 2], part_of_tile(from_right + n * NEXT_ROWS, NEXT_ROWS));
  end_products();
}
#else
#define SHOW_TO_PRODUCTS
/* Bytes from the begin of a row to the eight features from d on, a multiple of 16, or to those `after` them.
   Modulo 8 the row has the number of the lane: then what does not depend on it is known to the compiler. */
#define AT_FEATURE(d, after)                                                                        \
  (DEPTH % 64 == 0 ? (d) / 64 * 128 + (((d) % 64 / 8 + (after) ^ LANE % 8) * 16) : 2 * (d) + 16 * (after))
template <int N>
FUNCTION void add_products(float (&sum)[MT][N][4], const ushort* left, const ushort* right) {
  uint from_left = shared_address(left) + 2 * LD * (OWN_ROWS + LANE % 16);
  uint from_right = shared_address(right) + 2 * LD * (LANE / 16 * 8 + LANE % 8);
  _Pragma("unroll 4") for (int d = 0; d < DEPTH; d += 16) {
    uint a[MT][4], b[4];
    UNROLL for (int m = 0; m < MT; ++m)
      load_matrices(a[m], from_left + 2 * LD * 16 * m + AT_FEATURE(d, LANE / 16));
    UNROLL for (int n = 0; n < N; n += 2) {
      load_matrices(b, from_right + 2 * LD * 8 * n + AT_FEATURE(d, LANE / 8 % 2));
      UNROLL for (int m = 0; m < MT; ++m) {
        ADD_PRODUCT(sum[m][n], a[m], b);
        ADD_PRODUCT(sum[m][n + 1], a[m], b + 2);
      }
    }
  }
}
template <int N>
FUNCTION void add_weighted(float (&sum)[MT][CHUNKS][4], const float (&weights)[MT][N][4],
                           const ushort* right) {
  uint from_right = shared_address(right) + 2 * LD * (LANE % 16);
  UNROLL for (int n = 0; n < N; n += 2) {
    uint a[MT][4], b[4];
    UNROLL for (int m = 0; m < MT; ++m) set_factor(a[m], weights[m], n);
    UNROLL for (int k = 0; k < CHUNKS; k += 2) {
      load_transposed(b, from_right + 2 * LD * 8 * n + AT_FEATURE(8 * k, LANE / 16));
      UNROLL for (int m = 0; m < MT; ++m) {
        ADD_PRODUCT(sum[m][k], a[m], b);
        ADD_PRODUCT(sum[m][k + 1], a[m], b + 2);
      }
    }
  }
}
#endif
/* The results of a group, rounded, to a tile; each row times `factor`. */
FUNCTION void set_tile(ushort* tile, const float (&sum)[MT][CHUNKS][4], const float (&factor)[MT][2]) {
  UNROLL for (int m = 0; m < MT; ++m)
    UNROLL for (int k = 0; k < CHUNKS; ++k)
      UNROLL for (int half = 0; half < 2; ++half)
        *(uint*)(tile + place(ROW(m, 2 * half), COLUMN(k, 0))) =
            PAIR_OF(sum[m][k][2 * half] * factor[m][half], sum[m][k][2 * half + 1] * factor[m][half]);
}
/* The sum of the products of eight features. */
FUNCTION float product_of_eight(const ushort* a, const ushort* b) {
  uint4 x = *(const uint4*)a, y = *(const uint4*)b;
  const uint p[4] = {x.x, x.y, x.z, x.w}, q[4] = {y.x, y.y, y.z, y.w};
  float sum = 0;
  UNROLL for (int i = 0; i < 4; ++i)
    sum += NUMBER_OF((ushort)p[i]) * NUMBER_OF((ushort)q[i]) +
           NUMBER_OF((ushort)(p[i] >> 16)) * NUMBER_OF((ushort)(q[i] >> 16));
  return sum;
}
FUNCTION float sum_of_row(float x) {
  x += of_lane_across(x, 1);
  return x + of_lane_across(x, 2);
}

/* What kernels begin with. `first` is the position of the first query. */
#define SIZES                                                                                      \
  GROUP_MEMORY(memory)                                                                             \
  int length = (int)in0_extent(1), heads = (int)in0_extent(2), features = (int)in0_extent(3);      \
  int keys = (int)in1_extent(1), key_heads = (int)in1_extent(2), in_group = heads / key_heads;     \
  bool hides = attribute(0) != 0;                                                                  \
  int first = attribute(1) < keys ? (int)attribute(1) : keys;                                      \
  float scale = 1 / sqrtf((float)features);
#define FOR_TASKS for (uint task = (uint)GROUP_ID; task < (uint)tasks; task += (uint)GROUPS)
/* Tasks that are tiles of queries of one head, the last tile of a head first, and the keys up to `end` that
   these attend to. */
#define TILE_OF_QUERIES                                                                            \
  uint tiles = (length + ROWS - 1) / ROWS;                                                         \
  int t0 = (int)(tiles - 1 - task % tiles) * ROWS, h = (int)(task / tiles % heads);                \
  int b = (int)(task / tiles / heads), of = h / in_group, end = keys;                              \
  if (hides) end = min(keys, t0 + ROWS + first);
#define BEGIN_COLUMNS                                                                              \
  const auto begin_columns = [&](int j0, int stage) {                                              \
    ushort* to = others + stage * 2 * COLUMNS * LD;                                                \
    begin_tile<COLUMNS>(to, HEAD(in1, b, of, keys), j0);                                           \
    begin_tile<COLUMNS>(to + COLUMNS * LD, HEAD(in2, b, of, keys), j0);                            \
    end_of_copies();                                                                               \
  };
/* Whether all queries of the warp attend to all keys of a tile; the keys that a query attends to end here. */
#define ALL_SEEN (j0 + COLUMNS <= (hides ? min(keys, t0 + OWN_ROWS + first + 1) : keys))
#define END_OF(query) (hides ? min(keys, (query) + first + 1) : keys)
)";

/// Each task is a tile of queries. in: q, k, v; out: result, log_sum.
inline constexpr const char* attention_forward_tensor_core_text = R"(
NATIVE_KERNEL {
  SIZES
  ushort *queries = (ushort*)memory, *others = queries + ROWS * LD;
  float to_base_2 = scale * LOG2_E;
  FOR_TASKS {
    TILE_OF_QUERIES
    BEGIN_COLUMNS
    float result[MT][CHUNKS][4] = {}, sum[MT][2] = {}, top[MT][2];
    UNROLL for (int m = 0; m < MT; ++m) top[m][0] = top[m][1] = LOWEST;
    begin_tile<ROWS>(queries, HEAD(in0, b, h, length), t0);
    begin_columns(0, 0);
    for (int j0 = 0, stage = 0; j0 < end; j0 += COLUMNS, stage ^= 1) {
      const ushort* tile = others + stage * 2 * COLUMNS * LD;
      await_copies<0>();
      SHOW_TO_PRODUCTS
      BARRIER;
      if (j0 + COLUMNS < end) begin_columns(j0 + COLUMNS, stage ^ 1);
      float score[MT][COLUMNS / 8][4] = {};
      add_products(score, queries, tile);
      if (!ALL_SEEN)
        FOR_SUMS(COLUMNS) if (j0 + COLUMN(n, e) >= END_OF(t0 + ROW(m, e))) score[m][n][e] = HIDDEN;
      UNROLL for (int m = 0; m < MT; ++m)
        UNROLL for (int half = 0; half < 2; ++half) {
          float most = HIDDEN;
          UNROLL for (int n = 0; n < COLUMNS / 8; ++n)
            most = fmaxf(most, fmaxf(score[m][n][2 * half], score[m][n][2 * half + 1]));
          most = fmaxf(most, of_lane_across(most, 1));
          most = fmaxf(most, of_lane_across(most, 2));
          float next = fmaxf(top[m][half], most * to_base_2), shrink = power_of_two(top[m][half] - next);
          top[m][half] = next;
          sum[m][half] *= shrink;
          UNROLL for (int d = 0; d < CHUNKS; ++d) {
            result[m][d][2 * half] *= shrink;
            result[m][d][2 * half + 1] *= shrink;
          }
        }
      FOR_SUMS(COLUMNS) {
        score[m][n][e] = power_of_two(fmaf(score[m][n][e], to_base_2, -top[m][e / 2]));
        sum[m][e / 2] += score[m][n][e];
      }
      add_weighted(result, score, tile + COLUMNS * LD);
    }
    await_copies<0>();
    BARRIER;
    UNROLL for (int m = 0; m < MT; ++m)
      UNROLL for (int half = 0; half < 2; ++half) {
        float total = sum_of_row(sum[m][half]);
        int t = t0 + ROW(m, 2 * half);
        if (LANE % 4 == 0 && t < length)
          out1_store(b * out1_stride(0) + h * out1_stride(1) + t * out1_stride(2),
                     top[m][half] * LN_2 + log(total));
        sum[m][half] = keys > 0 ? 1 / total : 0;
      }
    set_tile(queries, result, sum);
    BARRIER;
    write_tile(HEAD(out0, b, h, length), t0, queries);
    BARRIER;
  }
}
)";

}  // namespace weft::gpu
