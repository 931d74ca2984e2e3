// SPDX-License-Identifier: MIT
// Attention in tiles (Dao, "FlashAttention-2", 2023): the texts for groups of threads that cooperate.
//
// A group owns a tile of rows, whose results stay in registers, and visits the tiles of columns that its rows
// attend to. Tiles are staged in shared memory as [row or column][feature], padded by four features, so that
// threads that each read four features of different rows have no bank conflicts. Thread (tx, ty) has rows ty
// RM to ty RM + RM - 1; of the scores, columns tx, tx + TX, ...; of the results, four features of every 4 TX.
// Nothing is accumulated in device memory and sums are formed in a fixed order, so results are deterministic.
//
// DEPTH (features, padded), TX, RM and COLUMNS are constants of the kernel: attention_kernels.hpp.
#pragma once

namespace weft::gpu {

/// The functions of all three kernels.
inline constexpr const char* attention_tiles_text = R"(
#define ROWS (RM * GROUP_SIZE / TX)
#define CN (COLUMNS / TX)
#define DN (DEPTH / TX)
#define LD (DEPTH + 4)
#define WD (COLUMNS + 4)
#define ROW(i) (ty * RM + (i))
#define COLUMN(j) (tx + TX * (j))
#define FEATURE(k) (4 * tx + (k) / 4 * 4 * TX + (k) % 4)
#define LOWEST FLOAT_OF_BITS(0xff800000u)
#define TILE(name, size)                         \
  SHARED_MEMORY float4 memory_of_##name[(size) / 4]; \
  SHARED float* name = (SHARED float*)memory_of_##name;
#define STAGE(tile, size, operand, from, count)                                                    \
  for (int e = me; e < (size) * DEPTH; e += GROUP_SIZE) {                                          \
    int r = e / DEPTH, d = e % DEPTH;                                                              \
    tile[r * LD + d] = r < (count) && d < features                                                 \
        ? operand##_load((from) + r * operand##_stride(1) + d * operand##_stride(3)) : 0;          \
  }
#define SET_ZERO(array, count) \
  for (int i = 0; i < RM; ++i) \
    for (int j = 0; j < (count); ++j) array[i][j] = 0;

/* What kernels begin with. */
#define THREAD                                                                                     \
  int me = (int)LOCAL_ID, tx = me % TX, ty = me / TX, hides = (int)attribute(0);                   \
  int features = (int)in0_extent(3);                                                               \
  float scale = 1 / sqrt((float)features);
/* Tasks that are tiles of queries of one head, the last tile of a head first, and the keys up to `end` that
   these attend to. */
#define SEEN_BY_QUERIES(i, j) \
  (j0 + COLUMN(j) < keys && (!hides || j0 + COLUMN(j) <= t0 + ROW(i) + attribute(1)))
#define FOR_TILES_OF_QUERIES                                                                       \
  long length = in0_extent(1), heads = in0_extent(2), keys = in1_extent(1);                        \
  long tiles = (length + ROWS - 1) / ROWS;                                                         \
  for (long task = GROUP_ID; task < tasks; task += GROUPS)
#define TILE_OF_QUERIES                                                                            \
  long t0 = (tiles - 1 - task % tiles) * ROWS, h = task / tiles % heads, b = task / tiles / heads; \
  long of = h / (heads / in1_extent(2)), end = keys;                                               \
  if (hides && t0 + ROWS + attribute(1) < end) end = t0 + ROWS + attribute(1);                     \
  STAGE(queries, ROWS, in0, b * in0_stride(0) + t0 * in0_stride(1) + h * in0_stride(2), length - t0)

FUNCTION float4 four(SHARED const float* from) { return *(SHARED const float4*)from; }

/* sum[i][j] = row ROW(i) of left times row COLUMN(j) of right. */
FUNCTION void set_products(float (*sum)[CN], SHARED const float* left, SHARED const float* right, int tx,
                           int ty) {
  SET_ZERO(sum, CN)
  for (int d = 0; d < DEPTH; d += 4) {
    float4 a[RM], b[CN];
    _Pragma("unroll") for (int i = 0; i < RM; ++i) a[i] = four(left + ROW(i) * LD + d);
    _Pragma("unroll") for (int j = 0; j < CN; ++j) b[j] = four(right + COLUMN(j) * LD + d);
    _Pragma("unroll") for (int i = 0; i < RM; ++i)
      _Pragma("unroll") for (int j = 0; j < CN; ++j) {
        sum[i][j] += a[i].x * b[j].x;
        sum[i][j] += a[i].y * b[j].y;
        sum[i][j] += a[i].z * b[j].z;
        sum[i][j] += a[i].w * b[j].w;
      }
  }
}

/* sum[i][k] += row ROW(i) of the weights times feature FEATURE(k) of right. */
#define ADD_COLUMN(column, weight)                                                   \
  _Pragma("unroll") for (int k = 0; k < DN; k += 4) {                                \
    float4 b = four(right + (column) * LD + FEATURE(k));                             \
    _Pragma("unroll") for (int i = 0; i < RM; ++i) {                                 \
      sum[i][k] += weight * b.x;                                                     \
      sum[i][k + 1] += weight * b.y;                                                 \
      sum[i][k + 2] += weight * b.z;                                                 \
      sum[i][k + 3] += weight * b.w;                                                 \
    }                                                                                \
  }
FUNCTION void add_weighted(float (*sum)[DN], SHARED const float* weights, SHARED const float* right, int tx,
                           int ty) {
  for (int c = 0; c < COLUMNS; c += 4) {
    float4 w[RM];
    _Pragma("unroll") for (int i = 0; i < RM; ++i) w[i] = four(weights + ROW(i) * WD + c);
    ADD_COLUMN(c, w[i].x)
    ADD_COLUMN(c + 1, w[i].y)
    ADD_COLUMN(c + 2, w[i].z)
    ADD_COLUMN(c + 3, w[i].w)
  }
}

/* The sum of the TX numbers of a row. */
FUNCTION float total_of(SHARED const float* partial) {
  float total = 0;
  _Pragma("unroll") for (int x = 0; x < TX; ++x) total += partial[x];
  return total;
}
)";

/// Each task is a tile of queries of one head, the last tile of a head first, since it has the most work with
/// a causal mask. in: q, k, v; out: result, log_sum.
inline constexpr const char* attention_forward_tiles_text = R"(
#define SEEN(i, j) SEEN_BY_QUERIES(i, j)
NATIVE_KERNEL {
  TILE(queries, ROWS * LD)
  TILE(others, COLUMNS * LD)
  TILE(weights, ROWS * WD)
  TILE(partial, ROWS * TX)
  THREAD
  FOR_TILES_OF_QUERIES {
    TILE_OF_QUERIES
    float result[RM][DN], sum[RM], top[RM];
    SET_ZERO(result, DN)
    for (int i = 0; i < RM; ++i) {
      sum[i] = 0;
      top[i] = LOWEST;
    }
    for (long j0 = 0; j0 < end; j0 += COLUMNS) {
      STAGE(others, COLUMNS, in1, b * in1_stride(0) + j0 * in1_stride(1) + of * in1_stride(2), keys - j0)
      BARRIER;
      float score[RM][CN];
      set_products(score, queries, others, tx, ty);
      _Pragma("unroll") for (int i = 0; i < RM; ++i) {
        float most = LOWEST;
        _Pragma("unroll") for (int j = 0; j < CN; ++j) {
          score[i][j] *= scale;
          if (SEEN(i, j)) most = LARGER(most, score[i][j]);
        }
        partial[ROW(i) * TX + tx] = most;
      }
      BARRIER;
      STAGE(others, COLUMNS, in2, b * in2_stride(0) + j0 * in2_stride(1) + of * in2_stride(2), keys - j0)
      _Pragma("unroll") for (int i = 0; i < RM; ++i) {
        float next = top[i], shrink;
        _Pragma("unroll") for (int x = 0; x < TX; ++x) next = LARGER(next, partial[ROW(i) * TX + x]);
        shrink = next == top[i] ? 1 : exp(top[i] - next);
        top[i] = next;
        sum[i] *= shrink;
        _Pragma("unroll") for (int k = 0; k < DN; ++k) result[i][k] *= shrink;
        _Pragma("unroll") for (int j = 0; j < CN; ++j) {
          float weight = SEEN(i, j) ? exp(score[i][j] - next) : 0;
          sum[i] += weight;
          weights[ROW(i) * WD + COLUMN(j)] = weight;
        }
      }
      BARRIER;
      add_weighted(result, weights, others, tx, ty);
      BARRIER;
    }
    for (int i = 0; i < RM; ++i) partial[ROW(i) * TX + tx] = sum[i];
    BARRIER;
    _Pragma("unroll") for (int i = 0; i < RM; ++i) {
      long t = t0 + ROW(i), y = b * out0_stride(0) + t * out0_stride(1) + h * out0_stride(2);
      float total = total_of(partial + ROW(i) * TX);
      if (t >= length) continue;
      if (tx == 0)
        out1_store(b * out1_stride(0) + h * out1_stride(1) + t * out1_stride(2), top[i] + log(total));
      _Pragma("unroll") for (int k = 0; k < DN; ++k)
        if (FEATURE(k) < features)
          out0_store(y + FEATURE(k) * out0_stride(3), total == 0 ? 0 : result[i][k] / total);
    }
    BARRIER;
  }
}
)";

/// The cotangents of queries: each task is a tile of them, as in the forward pass. in: q, k, v, result,
/// log_sum, cotangent of the result; out: cotangents of q, k and v.
inline constexpr const char* attention_queries_tiles_text = R"(
#define SEEN(i, j) SEEN_BY_QUERIES(i, j)
NATIVE_KERNEL {
  TILE(queries, ROWS * LD)
  TILE(cotangents, ROWS * LD)
  TILE(others, COLUMNS * LD)
  TILE(weights, ROWS * WD)
  TILE(partial, ROWS * TX)
  THREAD
  FOR_TILES_OF_QUERIES {
    TILE_OF_QUERIES
    STAGE(cotangents, ROWS, in5, b * in5_stride(0) + t0 * in5_stride(1) + h * in5_stride(2), length - t0)
    BARRIER;
    _Pragma("unroll") for (int i = 0; i < RM; ++i) {
      long t = t0 + ROW(i), y = b * in3_stride(0) + t * in3_stride(1) + h * in3_stride(2);
      float part = 0;
      for (int d = tx; d < features && t < length; d += TX)
        part += cotangents[ROW(i) * LD + d] * in3_load(y + d * in3_stride(3));
      partial[ROW(i) * TX + tx] = part;
    }
    BARRIER;
    float result[RM][DN], mean[RM], log_sum[RM];
    SET_ZERO(result, DN)
    _Pragma("unroll") for (int i = 0; i < RM; ++i) {
      long t = t0 + ROW(i), sums = b * in4_stride(0) + h * in4_stride(1);
      mean[i] = total_of(partial + ROW(i) * TX);
      log_sum[i] = t < length ? in4_load(sums + t * in4_stride(2)) : 0;
    }
    for (long j0 = 0; j0 < end; j0 += COLUMNS) {
      STAGE(others, COLUMNS, in2, b * in2_stride(0) + j0 * in2_stride(1) + of * in2_stride(2), keys - j0)
      BARRIER;
      float score[RM][CN], slope[RM][CN];
      set_products(slope, cotangents, others, tx, ty);
      BARRIER;
      STAGE(others, COLUMNS, in1, b * in1_stride(0) + j0 * in1_stride(1) + of * in1_stride(2), keys - j0)
      BARRIER;
      set_products(score, queries, others, tx, ty);
      _Pragma("unroll") for (int i = 0; i < RM; ++i)
        _Pragma("unroll") for (int j = 0; j < CN; ++j)
          weights[ROW(i) * WD + COLUMN(j)] =
              SEEN(i, j) ? exp(score[i][j] * scale - log_sum[i]) * (slope[i][j] - mean[i]) * scale : 0;
      BARRIER;
      add_weighted(result, weights, others, tx, ty);
      BARRIER;
    }
    _Pragma("unroll") for (int i = 0; i < RM; ++i) {
      long t = t0 + ROW(i), to = b * out0_stride(0) + t * out0_stride(1) + h * out0_stride(2);
      _Pragma("unroll") for (int k = 0; k < DN; ++k)
        if (t < length && FEATURE(k) < features) out0_store(to + FEATURE(k) * out0_stride(3), result[i][k]);
    }
    BARRIER;
  }
}
)";

/// The cotangents of keys and values: each task is a tile of them, and covers the queries of their group of
/// heads that attend to it. Operands as above.
inline constexpr const char* attention_keys_tiles_text = R"(
#define SEEN(i, j) (t0 + COLUMN(j) < length && s0 + ROW(i) < keys && \
                    (!hides || s0 + ROW(i) <= t0 + COLUMN(j) + attribute(1)))
NATIVE_KERNEL {
  TILE(owned_keys, ROWS * LD)
  TILE(values, ROWS * LD)
  TILE(queries, COLUMNS * LD)
  TILE(cotangents, COLUMNS * LD)
  TILE(weights, ROWS * WD)
  TILE(partial, COLUMNS * TX)
  THREAD
  long length = in0_extent(1), keys = in1_extent(1), key_heads = in1_extent(2);
  long tiles = (keys + ROWS - 1) / ROWS, in_group = in0_extent(2) / key_heads;
  for (long task = GROUP_ID; task < tasks; task += GROUPS) {
    long s0 = task % tiles * ROWS, of = task / tiles % key_heads, b = task / tiles / key_heads, begin = 0;
    if (hides && s0 > attribute(1)) begin = (s0 - attribute(1)) / COLUMNS * COLUMNS;
    STAGE(owned_keys, ROWS, in1, b * in1_stride(0) + s0 * in1_stride(1) + of * in1_stride(2), keys - s0)
    STAGE(values, ROWS, in2, b * in2_stride(0) + s0 * in2_stride(1) + of * in2_stride(2), keys - s0)
    float of_keys[RM][DN], of_values[RM][DN];
    SET_ZERO(of_keys, DN)
    SET_ZERO(of_values, DN)
    for (long h = of * in_group; h < (of + 1) * in_group; ++h) {
      for (long t0 = begin; t0 < length; t0 += COLUMNS) {
        STAGE(queries, COLUMNS, in0, b * in0_stride(0) + t0 * in0_stride(1) + h * in0_stride(2), length - t0)
        STAGE(cotangents, COLUMNS, in5, b * in5_stride(0) + t0 * in5_stride(1) + h * in5_stride(2),
              length - t0)
        BARRIER;
        for (int e = me; e < COLUMNS * TX; e += GROUP_SIZE) {
          int c = e / TX;
          long y = b * in3_stride(0) + (t0 + c) * in3_stride(1) + h * in3_stride(2);
          float part = 0;
          for (int d = e % TX; d < features && t0 + c < length; d += TX)
            part += cotangents[c * LD + d] * in3_load(y + d * in3_stride(3));
          partial[e] = part;
        }
        float score[RM][CN], slope[RM][CN];
        set_products(score, owned_keys, queries, tx, ty);
        set_products(slope, values, cotangents, tx, ty);
        BARRIER;
        _Pragma("unroll") for (int j = 0; j < CN; ++j) {
          long t = t0 + COLUMN(j), sums = b * in4_stride(0) + h * in4_stride(1);
          float log_sum = t < length ? in4_load(sums + t * in4_stride(2)) : 0;
          float mean = total_of(partial + COLUMN(j) * TX);
          _Pragma("unroll") for (int i = 0; i < RM; ++i) {
            float weight = SEEN(i, j) ? exp(score[i][j] * scale - log_sum) : 0;
            slope[i][j] = SEEN(i, j) ? weight * (slope[i][j] - mean) * scale : 0;
            weights[ROW(i) * WD + COLUMN(j)] = weight;
          }
        }
        BARRIER;
        add_weighted(of_values, weights, cotangents, tx, ty);
        BARRIER;
        _Pragma("unroll") for (int i = 0; i < RM; ++i)
          _Pragma("unroll") for (int j = 0; j < CN; ++j) weights[ROW(i) * WD + COLUMN(j)] = slope[i][j];
        BARRIER;
        add_weighted(of_keys, weights, queries, tx, ty);
        BARRIER;
      }
    }
    _Pragma("unroll") for (int i = 0; i < RM; ++i) {
      long s = s0 + ROW(i), to1 = b * out1_stride(0) + s * out1_stride(1) + of * out1_stride(2);
      long to2 = b * out2_stride(0) + s * out2_stride(1) + of * out2_stride(2);
      _Pragma("unroll") for (int k = 0; k < DN; ++k)
        if (s < keys && FEATURE(k) < features) {
          out1_store(to1 + FEATURE(k) * out1_stride(3), of_keys[i][k]);
          out2_store(to2 + FEATURE(k) * out2_stride(3), of_values[i][k]);
        }
    }
    BARRIER;
  }
}
)";

}  // namespace weft::gpu
