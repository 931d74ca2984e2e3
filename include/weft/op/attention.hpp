// SPDX-License-Identifier: MIT
// Scaled dot-product attention as one op: its fused form is not an element-wise or row computation that
// fusion could find.
//
//   auto y = attention<causal>(q, k, v);      // [batch, position, head, feature] each
#pragma once

#include <weft/device/cpu/attention.hpp>
#include <weft/op/rule.hpp>

namespace weft::op {

/// The compile-time error for queries, keys and values of different shapes.
template <bool Holds, class... Extents>
struct attention_law {
  static_assert(Holds, "weft: attention: queries, keys and values must have the same four extents "
                       "[batch, position, head, feature]");
};

namespace detail {

/// Work items of the GPU kernel: one for each row of scores.
inline index_t attention_items(const native_operands& o) {
  const shape& s = o.in[0].extents;
  return s[0] * s[1] * s[2];
}

/// Scores are computed twice and never stored: once for their sum, once for the weighted values.
inline constexpr const char* attention_text = R"(
    long T = in0_extent(1), t = item % T, h = item / T % in0_extent(2), b = item / T / in0_extent(2);
    long features = in0_extent(3), keys = attribute(0) ? t + 1 : T;
    long q = b * in0_stride(0) + t * in0_stride(1) + h * in0_stride(2);
    long k = b * in1_stride(0) + h * in1_stride(2), v = b * in2_stride(0) + h * in2_stride(2);
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

/// Each item computes the cotangents of one position: of its query, over the keys that it attends to, and of
/// its key and value, over the queries that attend to them.
inline constexpr const char* attention_backward_text = R"(
    long T = in0_extent(1), t = item % T, h = item / T % in0_extent(2), b = item / T / in0_extent(2);
    long features = in0_extent(3);
    long q = b * in0_stride(0) + h * in0_stride(2), k = b * in1_stride(0) + h * in1_stride(2);
    long v = b * in2_stride(0) + h * in2_stride(2), y = b * in3_stride(0) + h * in3_stride(2);
    long sums = b * in4_stride(0) + h * in4_stride(1), g = b * in5_stride(0) + h * in5_stride(2);
    long to = b * out0_stride(0) + t * out0_stride(1) + h * out0_stride(2);
    in0_t scale = 1 / sqrt((in0_t)features);
    for (int d = 0; d < features; ++d) {
      out0_store(to + d, 0);
      out1_store(to + d, 0);
      out2_store(to + d, 0);
    }
    for (long other = 0; other < T; ++other)
      for (int role = 0; role < 2; ++role) {
        long i = role == 0 ? t : other, j = role == 0 ? other : t;
        if (attribute(0) && j > i) continue;
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
          if (role == 0) {
            out0_store(to + d, out0_load(to + d) +
                               slope * in1_load(k + j * in1_stride(1) + d * in1_stride(3)));
          } else {
            out1_store(to + d, out1_load(to + d) +
                               slope * in0_load(q + i * in0_stride(1) + d * in0_stride(3)));
            out2_store(to + d, out2_load(to + d) +
                               weight * in5_load(g + i * in5_stride(1) + d * in5_stride(3)));
          }
        }
      })";

template <void (*F32)(const native_call&), void (*F64)(const native_call&)>
void by_type(const native_call& call) {
  call.in[0].type == dtype::f64 ? F64(call) : F32(call);
}
}  // namespace detail

/// The derivative of `attention`: cotangents of queries (the value), keys and values (results 1 and 2). Has
/// no derivative itself.
struct attention_backward : rule<6> {
  static constexpr auto kind = op_kind::native;
  static constexpr auto name = "attention_backward";
  static constexpr auto divides = "b.h. b.h. b.h. b.h. bh. b.h. -> b.h. b.h. b.h.";
  static constexpr int results = 3;
  static constexpr native_code code{
      &detail::by_type<&cpu::attention_backward<float>, &cpu::attention_backward<double>>,
      detail::attention_backward_text, &detail::attention_items};
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    return {true, operands[0]};
  }
  static constexpr tensor_spec result_spec(int k, const tensor_spec* operands) { return operands[k]; }
};

/// softmax(q k^T / sqrt(features)) v per batch element and head, without storing the scores (Dao et al.,
/// "FlashAttention", 2022). Result 1 is the logarithm of the sum of exponentials of each row, [batch, head,
/// position], which backward reads.
struct attention : rule<3> {
  static constexpr auto kind = op_kind::native;
  static constexpr auto name = "attention";
  static constexpr auto divides = "b.h. b.h. b.h. -> b.h. bh.";
  static constexpr int results = 2;
  static constexpr native_code code{
      &detail::by_type<&cpu::attention<float>, &cpu::attention<double>>, detail::attention_text,
      &detail::attention_items};
  template <bool Holds, class... Extents>
  using law = attention_law<Holds, Extents...>;

  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes&, const tensor_spec* operands) {
    inferred result{operands[0].extents.order == 4, operands[0]};
    for (int i = 1; i < 3 && result.holds; ++i) {
      result.types_fit &= operands[i].type == operands[0].type;
      result.holds = operands[i].extents.order == 4;
      for (int d = 0; d < 4 && result.holds; ++d)
        result.holds = dims.unify(result.value.extents[d], operands[i].extents[d],
                                  result.value.extents[d]);
    }
    result.types_fit &= operands[0].type == dtype::f32 || operands[0].type == dtype::f64;
    return result;
  }
  static constexpr tensor_spec result_spec(int, const tensor_spec* operands) {
    const shape& s = operands[0].extents;
    return {operands[0].type, {3, {s[0], s[2], s[1]}}};
  }
  static constexpr auto vjp(auto g, auto y, auto q, auto k, auto v) {
    const auto dq = g.owner->template apply<attention_backward>(y.attribute_values(), q, k, v, y,
                                                                result_of(y, 1), g);
    return std::array{dq, result_of(dq, 1), result_of(dq, 2)};
  }
};

}  // namespace weft::op

namespace weft {

/// Template argument of `attention`: each position attends to itself and to earlier positions only.
inline constexpr bool causal = true;

/// Whether attention accepts these queries, keys and values.
template <class Q, class K, class V>
concept attention_compatible = accepts<op::attention, attr<causal>, Q, K, V>;

/// softmax(q k^T / sqrt(D)) v per batch element and head; q, k, v and the result are [B, T, H, D] (PyTorch's
/// scaled_dot_product_attention takes [B, H, T, D]), all f32 or all f64. With `Causal`, position t attends to
/// positions 0 to t. Memory is linear in T, time quadratic. Differentiable once.
template <bool Causal, expression Q, expression K, expression V>
constexpr auto attention(Q q, K k, V v) {
  return apply<op::attention, attr<Causal>>(std::move(q), std::move(k), std::move(v));
}

}  // namespace weft
