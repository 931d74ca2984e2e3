// SPDX-License-Identifier: MIT
// The texts of native ops that look up, order and draw elements; device/native.hpp explains their vocabulary.
#pragma once

namespace weft::gpu {

/// Definitions of texts whose items are lines along `dim`: the statements `visit` for each other dim d, in
/// which line `rest` has position i.
inline constexpr const char* line_words = R"(
#define IN_OTHER_DIMS(tensor, visit)         \
    for (int d = tensor##_order; d-- > 0;)   \
      if (d != dim) {                        \
        long i = rest % tensor##_extent(d);  \
        rest /= tensor##_extent(d);          \
        visit                                \
      }
)";

/// Definitions for running sums and products of floating elements: f64 or, on devices without it, two f32,
/// the second of which is what rounding has taken from the first.
inline constexpr const char* running_number_words = R"(
#ifdef HAS_DOUBLE
typedef double running;
FUNCTION running running_of(double x) { return x; }
FUNCTION running running_sum(running y, double x) { return y + x; }
FUNCTION running running_product(running y, double x) { return y * x; }
FUNCTION double value_of(running y) { return y; }
#else
#pragma OPENCL FP_CONTRACT OFF
typedef float2 running;
FUNCTION running running_pair(float x, float rest) {
  float sum = x + rest, left = rest - (sum - x);
  return left - left == 0 ? (float2)(sum, left) : (float2)(x, 0.0f);
}
FUNCTION running running_of(float x) { return (float2)(x, 0.0f); }
FUNCTION running running_sum(running y, float x) {
  float sum = y.x + x, other = sum - y.x;
  return running_pair(sum, (y.x - (sum - other)) + (x - other) + y.y);
}
FUNCTION running running_product(running y, float x) {
  float product = y.x * x;
  return running_pair(product, fma(y.x, x, -product) + y.y * x);
}
FUNCTION float value_of(running y) { return y.x; }
#endif
)";
/// The same for integers: modulo 2^64.
inline constexpr const char* running_integer_words = R"(
typedef ulong running;
#define running_of(x) ((running)(x))
#define running_sum(y, x) ((y) + (running)(x))
#define running_product(y, x) ((y) * (running)(x))
#define value_of(y) (y)
)";

/// Each item is an index.
inline constexpr const char* checked_index_text = R"(
    long index = in0_load(in0_offset(item));
    int skips = attribute(3) && index == attribute(2);
    if (!skips && (index < 0 || index >= attribute(0))) { fault(); continue; }
    out0_store(item, skips ? -1 : (int)index);)";

/// Each item is an index into a table whose rows have no elements.
inline constexpr const char* checked_row_text = R"(
    long row = in1_load(in1_offset(item));
    if (row < 0 || row >= in0_extent(0)) fault();)";

/// Each item is an element of the result.
inline constexpr const char* index_select_text = R"(
    long size = 1;
    for (int d = 1; d < in0_order; ++d) size *= in0_extent(d);
    long row = in1_load(in1_offset(item / size)), rest = item % size;
    if (row < 0 || row >= in0_extent(0)) { fault(); continue; }
    long at = row * in0_stride(0);
    for (int d = in0_order; d-- > 1;) {
      at += rest % in0_extent(d) * in0_stride(d);
      rest /= in0_extent(d);
    }
    out0_store(item, in0_load(at));)";

/// Each item is an element of the result.
inline constexpr const char* gather_text = R"(
    int dim = (int)attribute(0);
    long index = in1_load(in1_offset(item)), rest = item, at = 0;
    if (index < 0 || index >= in0_extent(dim)) { fault(); continue; }
    for (int d = in1_order; d-- > 0;) {
      at += (d == dim ? index : rest % in1_extent(d)) * in0_stride(d);
      rest /= in1_extent(d);
    }
    out0_store(item, in0_load(at));)";

/// Each item is an index into a dim of a result without elements.
inline constexpr const char* checked_scatter_text = R"(
    long to = in0_load(in0_offset(item));
    if (to < 0 || to >= out0_extent((int)attribute(0))) fault();)";

/// Each item is a line of the result.
inline constexpr const char* scatter_sum_text = R"(
    int dim = (int)attribute(0);
    long rest = item, index_at = 0, source_at = 0, out_at = 0;
    IN_OTHER_DIMS(out0, index_at += i * in0_stride(d); source_at += i * in1_stride(d);
                  out_at += i * out0_stride(d);)
    for (long i = 0; i < out0_extent(dim) && !out0_adds; ++i) out0_store(out_at + i * out0_stride(dim), 0);
    for (long i = 0; i < in0_extent(dim); ++i) {
      long to = in0_load(index_at + i * in0_stride(dim)), at = out_at + to * out0_stride(dim);
      if (to < 0 || to >= out0_extent(dim)) { fault(); continue; }
      out0_store(at, out0_load(at) + in1_load(source_at + i * in1_stride(dim)));
    })";

/// Each item is a line of the operand.
inline constexpr const char* arg_extremum_text = R"(
    int dim = (int)attribute(0);
    long rest = item, at = 0, best = 0;
    IN_OTHER_DIMS(in0, at += i * in0_stride(d);)
    in0_t extreme = in0_load(at);
    for (long i = 1; i < in0_extent(dim) && extreme == extreme; ++i) {
      in0_t x = in0_load(at + i * in0_stride(dim));
      if (x != x || (attribute(1) ? x < extreme : x > extreme)) {
        best = i;
        extreme = x;
      }
    }
    out0_store(item, best);)";

/// Each item is one element. Its place in the sorted line is the number of elements that precede it.
inline constexpr const char* argsort_text = R"(
    int dim = (int)attribute(0);
    long rest = item, at = 0, to = 0, own = 0, place = 0;
    for (int d = in0_order; d-- > 0;) {
      long i = rest % in0_extent(d);
      rest /= in0_extent(d);
      if (d == dim) own = i;
      else {
        at += i * in0_stride(d);
        to += i * out0_stride(d);
      }
    }
    in0_t x = in0_load(at + own * in0_stride(dim));
    for (long i = 0; i < in0_extent(dim); ++i) {
      in0_t y = in0_load(at + i * in0_stride(dim));
      int less = y < x || (x != x && y == y), more = y > x || (y != y && x == x);
      place += (attribute(1) ? more : less) || (!less && !more && i < own);
    }
    if (place < out0_extent(dim)) out0_store(to + place * out0_stride(dim), own);)";

/// Each item is a line.
inline constexpr const char* cumsum_text = R"(
    int dim = (int)attribute(0);
    long rest = item, at = 0, to = 0;
    IN_OTHER_DIMS(in0, at += i * in0_stride(d); to += i * out0_stride(d);)
    running sum = running_of(0);
    for (long n = 0; n < in0_extent(dim); ++n) {
      long i = attribute(1) ? in0_extent(dim) - 1 - n : n;
      sum = running_sum(sum, in0_load(at + i * in0_stride(dim)));
      out0_store(to + i * out0_stride(dim), value_of(sum));
    })";

/// Each item is a line.
inline constexpr const char* cumprod_text = R"(
    int dim = (int)attribute(0);
    long rest = item, at = 0, to = 0;
    IN_OTHER_DIMS(in0, at += i * in0_stride(d); to += i * out0_stride(d);)
    running product = running_of(1);
    for (long i = 0; i < in0_extent(dim); ++i) {
      running before = product;
      product = running_product(product, in0_load(at + i * in0_stride(dim)));
      out0_store(to + i * out0_stride(dim), attribute(1) ? value_of(before) : value_of(product));
    })";

/// Each item is a line.
inline constexpr const char* linear_recurrence_text = R"(
    int dim = (int)attribute(0), from_end = attribute(1) != 0;
    long rest = item, factor = 0, summand = 0, to = 0;
    IN_OTHER_DIMS(in0, factor += i * in0_stride(d); summand += i * in1_stride(d); to += i * out0_stride(d);)
    running y = running_of(0);
    for (long n = 0; n < in0_extent(dim); ++n) {
      long i = from_end ? in0_extent(dim) - 1 - n : n;
      if (n) y = running_product(y, in0_load(factor + (i + from_end) * in0_stride(dim)));
      y = running_sum(y, in1_load(summand + i * in1_stride(dim)));
      out0_store(to + i * out0_stride(dim), value_of(y));
    })";

/// Each item is an element.
inline constexpr const char* uniform_text = R"(
    uint bits = philox_word(mix(random, attribute(0)), item);
    out0_store(item, (float)(bits >> 8) * 5.9604644775390625e-8f);)";

/// Each item is an element.
inline constexpr const char* checked_probability_text = R"(
    in0_t p = in0_load(in0_offset(item));
    if (!(p >= 0 && p <= 1)) { fault(); continue; }
    out0_store(item, p);)";

}  // namespace weft::gpu
