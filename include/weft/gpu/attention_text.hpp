// SPDX-License-Identifier: MIT
// The texts of attention (device/native.hpp explains their vocabulary).
#pragma once

namespace weft::gpu {

/// Each item is a row of scores, which are computed twice and never stored: once for their sum, and once for
/// the weighted values.
inline constexpr const char* attention_text = R"(
    long T = in0_extent(1), heads = in0_extent(2), t = item % T, h = item / T % heads, b = item / T / heads;
    long features = in0_extent(3), keys = in1_extent(1), of = h / (heads / in1_extent(2));
    if (attribute(0) && t + attribute(1) + 1 < keys) keys = t + attribute(1) + 1;
    long q = b * in0_stride(0) + t * in0_stride(1) + h * in0_stride(2);
    long k = b * in1_stride(0) + of * in1_stride(2), v = b * in2_stride(0) + of * in2_stride(2);
    long y = b * out0_stride(0) + t * out0_stride(1) + h * out0_stride(2);
    in0_t scale = 1 / sqrt((in0_t)features), top = 0, sum = 0, log_sum = 0;
    for (int d = 0; d < features; ++d) out0_store(y + d, 0);
    for (int pass = 0; pass < 2; ++pass) {
      for (long j = 0; j < keys; ++j) {
        in0_t score = 0;
        for (int d = 0; d < features; ++d)
          score += in0_load(q + d * in0_stride(3)) * in1_load(k + j * in1_stride(1) + d * in1_stride(3));
        score *= scale;
        if (pass == 0) {
          if (j > 0 && score <= top) sum += exp(score - top);
          else {
            sum = j > 0 ? sum * exp(top - score) + 1 : 1;
            top = score;
          }
        } else {
          in0_t weight = exp(score - log_sum);
          for (int d = 0; d < features; ++d)
            out0_store(y + d, out0_load(y + d) +
                              weight * in2_load(v + j * in2_stride(1) + d * in2_stride(3)));
        }
      }
      log_sum = top + log(sum);
    }
    out1_store(item, log_sum);)";

/// The first items each compute the cotangent of one query, over the keys that it attends to; the others each
/// compute those of one key and its value, over the queries of its group of heads that attend to it.
inline constexpr const char* attention_backward_text = R"(
    long T = in0_extent(1), heads = in0_extent(2), keys = in1_extent(1), group = heads / in1_extent(2);
    long queries = in0_extent(0) * T * heads, of_key = item >= queries, features = in0_extent(3);
    long own = of_key ? item - queries : item, length = of_key ? keys : T;
    long own_heads = of_key ? in1_extent(2) : heads, t = own % length;
    long head = own / length % own_heads, b = own / length / own_heads;
    long to0 = b * out0_stride(0) + t * out0_stride(1) + head * out0_stride(2);
    long to1 = b * out1_stride(0) + t * out1_stride(1) + head * out1_stride(2);
    long to2 = b * out2_stride(0) + t * out2_stride(1) + head * out2_stride(2);
    in0_t scale = 1 / sqrt((in0_t)features);
    for (int d = 0; d < features; ++d) {
      if (of_key) {
        out1_store(to1 + d, 0);
        out2_store(to2 + d, 0);
      } else out0_store(to0 + d, 0);
    }
    for (long h = of_key ? head * group : head; h < (of_key ? (head + 1) * group : head + 1); ++h) {
      long q = b * in0_stride(0) + h * in0_stride(2), k = b * in1_stride(0) + h / group * in1_stride(2);
      long v = b * in2_stride(0) + h / group * in2_stride(2), y = b * in3_stride(0) + h * in3_stride(2);
      long sums = b * in4_stride(0) + h * in4_stride(1), g = b * in5_stride(0) + h * in5_stride(2);
      for (long other = 0; other < (of_key ? T : keys); ++other) {
        long i = of_key ? other : t, j = of_key ? t : other;
        if (attribute(0) && j > i + attribute(1)) continue;
        in0_t score = 0, through = 0, mean = 0;
        for (int d = 0; d < features; ++d) {
          in0_t from = in5_load(g + i * in5_stride(1) + d * in5_stride(3));
          score += in0_load(q + i * in0_stride(1) + d * in0_stride(3)) *
                   in1_load(k + j * in1_stride(1) + d * in1_stride(3));
          through += from * in2_load(v + j * in2_stride(1) + d * in2_stride(3));
          mean += from * in3_load(y + i * in3_stride(1) + d * in3_stride(3));
        }
        in0_t weight = exp(score * scale - in4_load(sums + i * in4_stride(2)));
        in0_t slope = weight * (through - mean) * scale;
        for (int d = 0; d < features; ++d) {
          if (!of_key) {
            out0_store(to0 + d, out0_load(to0 + d) +
                                slope * in1_load(k + j * in1_stride(1) + d * in1_stride(3)));
          } else {
            out1_store(to1 + d, out1_load(to1 + d) +
                                slope * in0_load(q + i * in0_stride(1) + d * in0_stride(3)));
            out2_store(to2 + d, out2_load(to2 + d) +
                                weight * in5_load(g + i * in5_stride(1) + d * in5_stride(3)));
          }
        }
      }
    })";

}  // namespace weft::gpu
