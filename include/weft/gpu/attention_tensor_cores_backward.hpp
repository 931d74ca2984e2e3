// SPDX-License-Identifier: MIT
// The derivative of attention on tensor cores: texts that follow those of attention_tensor_cores.hpp. Weights
// are recomputed from the stored logarithms of the sums. MEANS, if defined, is scratch memory for one number
// per query: the mean of the slopes of its weights, which both kernels need.
#pragma once

namespace weft::gpu {

/// The cotangents of queries: each task is a tile of them, as in the forward pass. in: q, k, v, result,
/// log_sum, cotangent of the result; out: cotangents of q, k and v.
inline constexpr const char* attention_queries_tensor_core_text = R"(
NATIVE_KERNEL {
  SIZES
  ushort *queries = (ushort*)memory, *cotangents = queries + ROWS * LD, *others = cotangents + ROWS * LD;
  FOR_TASKS {
    TILE_OF_QUERIES
    BEGIN_COLUMNS
    float result[MT][CHUNKS][4] = {}, mean[MT][2], log_sum[MT][2], factor[MT][2];
    begin_tile<ROWS>(queries, HEAD(in0, b, h, length), t0);
    begin_tile<ROWS>(cotangents, HEAD(in5, b, h, length), t0);
    end_of_copies();
    begin_columns(0, 0);
    await_copies<1>();
    BARRIER;
    UNROLL for (int m = 0; m < MT; ++m)
      UNROLL for (int half = 0; half < 2; ++half) {
        int r = ROW(m, 2 * half), t = t0 + r;
        long y = b * in3_stride(0) + h * in3_stride(2) + t * in3_stride(1);
        float part = 0;
        for (int d = LANE % 4; t < length && d < features; d += 4)
          part += NUMBER_OF(cotangents[place(r, d)]) * in3_load(y + d * in3_stride(3));
        mean[m][half] = sum_of_row(part);
#ifdef MEANS
        if (LANE % 4 == 0 && t < length) MEANS[(b * heads + h) * (long)length + t] = mean[m][half];
#endif
        log_sum[m][half] = 0;
        if (t < length)
          log_sum[m][half] = in4_load(b * in4_stride(0) + h * in4_stride(1) + t * in4_stride(2)) * LOG2_E;
        factor[m][half] = scale;
      }
    for (int j0 = 0, stage = 0; j0 < end; j0 += COLUMNS, stage ^= 1) {
      const ushort* tile = others + stage * 2 * COLUMNS * LD;
      await_copies<0>();
      SHOW_TO_PRODUCTS
      BARRIER;
      if (j0 + COLUMNS < end) begin_columns(j0 + COLUMNS, stage ^ 1);
      for (int part = 0; part < COLUMNS; part += PART) {
        float score[MT][PART / 8][4] = {}, slope[MT][PART / 8][4] = {};
        add_products(score, queries, tile + part * LD);
        add_products(slope, cotangents, tile + (COLUMNS + part) * LD);
        FOR_SUMS(PART) {
          float weight = power_of_two(fmaf(score[m][n][e], scale * LOG2_E, -log_sum[m][e / 2]));
          slope[m][n][e] = weight * (slope[m][n][e] - mean[m][e / 2]);
        }
        if (!ALL_SEEN)
          FOR_SUMS(PART) if (j0 + part + COLUMN(n, e) >= END_OF(t0 + ROW(m, e))) slope[m][n][e] = 0;
        add_weighted(result, slope, tile + part * LD);
      }
    }
    await_copies<0>();
    BARRIER;
    set_tile(queries, result, factor);
    BARRIER;
    write_tile(HEAD(out0, b, h, length), t0, queries);
    BARRIER;
  }
}
)";

/// The cotangents of keys and values: each task is a tile of them, and covers the queries of their group of
/// heads that attend to it. Operands as above.
inline constexpr const char* attention_keys_tensor_core_text = R"(
#ifdef MEANS
#define STAGED 2 /* tiles of columns in a stage: queries, cotangents */
#else
#define STAGED 3 /* and results */
#endif
#define LANES (GROUP_SIZE / COLUMNS) /* that add up the mean slope of a query */
#define SEEN(query, key) ((query) < length && (key) < END_OF(query))
NATIVE_KERNEL {
  SIZES
  ushort *own_keys = (ushort*)memory, *values = own_keys + ROWS * LD, *others = values + ROWS * LD;
  float* numbers = (float*)(others + 2 * STAGED * COLUMNS * LD); /* of a stage: log-sums, means */
  uint tiles = (keys + ROWS - 1) / ROWS;
  int me = (int)LOCAL_ID;
  FOR_TASKS {
    int s0 = (int)(task % tiles) * ROWS, of = (int)(task / tiles % key_heads);
    int b = (int)(task / tiles / key_heads);
    int begin = hides && s0 > first ? min(s0 - first, length) / COLUMNS * COLUMNS : 0;
    int per_head = (length - begin + COLUMNS - 1) / COLUMNS, steps = per_head * in_group;
    float of_keys[MT][CHUNKS][4] = {}, of_values[MT][CHUNKS][4] = {}, factor[MT][2];
    const auto begin_step = [&](int step) {
      int h = of * in_group + step / per_head, t0 = begin + step % per_head * COLUMNS;
      ushort* to = others + step % 2 * STAGED * COLUMNS * LD;
      begin_tile<COLUMNS>(to, HEAD(in0, b, h, length), t0);
      begin_tile<COLUMNS>(to + COLUMNS * LD, HEAD(in5, b, h, length), t0);
      int t = t0 + me % COLUMNS < length ? t0 + me % COLUMNS : 0;
      const float* from = in4_data + b * in4_stride(0) + h * in4_stride(1) + t * in4_stride(2);
#ifdef MEANS
      if (me >= COLUMNS) from = MEANS + (b * heads + h) * (long)length + t;
#else
      begin_tile<COLUMNS>(to + 2 * COLUMNS * LD, HEAD(in3, b, h, length), t0);
#endif
      if (me < (STAGED == 2 ? 2 : 1) * COLUMNS) begin_small_copy(numbers + step % 2 * 2 * COLUMNS + me, from);
      end_of_copies();
    };
    begin_tile<ROWS>(own_keys, HEAD(in1, b, of, keys), s0);
    begin_tile<ROWS>(values, HEAD(in2, b, of, keys), s0);
    end_of_copies();
    if (steps > 0) begin_step(0);
    for (int step = 0; step < steps; ++step) {
      const ushort* queries = others + step % 2 * STAGED * COLUMNS * LD;
      const ushort* cotangents = queries + COLUMNS * LD;
      float *sums = numbers + step % 2 * 2 * COLUMNS, *means = sums + COLUMNS;
      int t0 = begin + step % per_head * COLUMNS;
      await_copies<0>();
      SHOW_TO_PRODUCTS
      BARRIER;
      if (step + 1 < steps) begin_step(step + 1);
#ifndef MEANS
      const ushort* results = cotangents + COLUMNS * LD;
      float mean = 0;
      for (int d = me % LANES * 8; d < DEPTH; d += 8 * LANES)
        mean += product_of_eight(cotangents + place(me / LANES, d), results + place(me / LANES, d));
      for (int across = 1; across < LANES; across *= 2) mean += of_lane_across(mean, across);
      if (me % LANES == 0) means[me / LANES] = mean;
      BARRIER;
#endif
      UNROLL for (int part = 0; part < COLUMNS; part += PART) {
        float weight[MT][PART / 8][4] = {}, slope[MT][PART / 8][4] = {};
        add_products(weight, own_keys, queries + part * LD);
        add_products(slope, values, cotangents + part * LD);
        FOR_SUMS(PART) {
          int c = part + COLUMN(n, e);
          float w = power_of_two(fmaf(weight[m][n][e], scale * LOG2_E, -sums[c] * LOG2_E));
          weight[m][n][e] = SEEN(t0 + c, s0 + ROW(m, e)) ? w : 0;
          slope[m][n][e] = SEEN(t0 + c, s0 + ROW(m, e)) ? w * (slope[m][n][e] - means[c]) : 0;
        }
        add_weighted(of_values, weight, cotangents + part * LD);
        add_weighted(of_keys, slope, queries + part * LD);
      }
    }
    await_copies<0>();
    BARRIER;
    UNROLL for (int m = 0; m < MT; ++m) factor[m][0] = factor[m][1] = 1;
    set_tile(values, of_values, factor);
    UNROLL for (int m = 0; m < MT; ++m) factor[m][0] = factor[m][1] = scale;
    set_tile(own_keys, of_keys, factor);
    BARRIER;
    write_tile(HEAD(out1, b, of, keys), s0, own_keys);
    write_tile(HEAD(out2, b, of, keys), s0, values);
    BARRIER;
  }
}
)";

}  // namespace weft::gpu
