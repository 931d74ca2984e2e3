// SPDX-License-Identifier: MIT
// Scaled dot-product attention as one op: its fused form is not an element-wise or row computation that
// fusion could find.
//
//   auto y = attention<causal>(q, k, v);      // [batch, position, head, feature] each
#pragma once

#include <weft/device/cpu/attention.hpp>
#include <weft/op/rule.hpp>

namespace weft::op {

/// The compile-time error for queries, keys and values whose shapes do not fit.
template <bool Holds, class... Extents>
struct attention_law {
  static_assert(Holds,
                "weft: attention: queries are [batch, queries, heads, features], keys and values "
                "[batch, keys, key heads, features]: equal batch, features, keys and key heads, and "
                "key heads divide heads");
};

namespace detail {

/// Work items of the GPU kernels: one for each row of scores.
inline index_t attention_items(const native_operands& o) {
  const shape& s = o.in[0].extents;
  return s[0] * s[1] * s[2];
}
/// The same in backward: first one for each query, then one for each key.
inline index_t attention_backward_items(const native_operands& o) {
  const shape& s = o.in[1].extents;
  return attention_items(o) + s[0] * s[1] * s[2];
}

/// Scores are computed twice and never stored: once for their sum, once for the weighted values.
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

/// The first items compute the cotangent of one query, over the keys that it attends to; the others those of
/// one key and its value, over the queries of its group of heads that attend to them.
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
  static constexpr unsigned extents = 0b10;
  static constexpr native_code code{
      &detail::by_type<&cpu::attention_backward<float>, &cpu::attention_backward<double>>,
      detail::attention_backward_text, &detail::attention_backward_items};
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    return {true, operands[0]};
  }
  static constexpr tensor_spec result_spec(int k, const tensor_spec* operands) { return operands[k]; }
};

/// softmax(q k^T / sqrt(features)) v per batch element and head, without storing the scores (Dao et al.,
/// "FlashAttention", 2022). Attributes: whether causal; the position of the first query if that of the first
/// key is 0. Result 1 is the logarithm of the sum of exponentials of each row, [batch, head, position], which
/// backward reads.
struct attention : rule<3> {
  static constexpr auto kind = op_kind::native;
  static constexpr auto name = "attention";
  static constexpr auto divides = "b.h. b.h. b.h. -> b.h. bh.";
  static constexpr int results = 2;
  static constexpr unsigned extents = 0b10;
  static constexpr native_code code{&detail::by_type<&cpu::attention<float>, &cpu::attention<double>>,
                                    detail::attention_text, &detail::attention_items};
  template <bool Holds, class... Extents>
  using law = attention_law<Holds, Extents...>;

  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes&, const tensor_spec* operands) {
    inferred result{operands[0].extents.order == 4, operands[0]};
    for (int i = 1; i < 3; ++i) {
      result.types_fit &= operands[i].type == operands[0].type;
      result.holds &= operands[i].extents.order == 4;
    }
    result.types_fit &= operands[0].type == dtype::f32 || operands[0].type == dtype::f64;
    if (!result.holds) return result;
    shape &q = result.value.extents, k = operands[1].extents;
    for (int d = 0; d < 4; ++d) result.holds &= dims.unify(k[d], operands[2].extents[d], k[d]);
    result.holds = result.holds && dims.unify(q[0], k[0], q[0]) && dims.unify(q[3], k[3], q[3]);
    const bool in_groups = q[2] < 0 || k[2] < 0 || (k[2] == 0 ? q[2] == 0 : q[2] % k[2] == 0);
    if (q[2] != k[2]) dims.divide(q[2], k[2]);  // if it is not known now, then checked at run time
    result.holds = result.holds && in_groups;
    return result;
  }
  static constexpr tensor_spec result_spec(int, const tensor_spec* operands) {
    const shape& s = operands[0].extents;
    return {operands[0].type, {3, {s[0], s[2], s[1]}}};
  }
  static constexpr auto vjp(auto g, auto y, auto q, auto k, auto v) {
    const auto dq =
        g.owner->template apply<attention_backward>(y.attribute_values(), q, k, v, y, result_of(y, 1), g);
    return std::array{dq, result_of(dq, 1), result_of(dq, 2)};
  }
};

}  // namespace weft::op

namespace weft {

/// Template argument of `attention`: each position attends to itself and to earlier positions only.
inline constexpr bool causal = true;

/// Whether attention accepts these queries, keys and values.
template <class Q, class K, class V>
concept attention_compatible = accepts<op::attention, attr<causal, 0>, Q, K, V>;

/// softmax(q k^T / sqrt(D)) v per batch element and head. q and the result are [B, T, H, D], k and v
/// [B, S, K, D] (PyTorch's scaled_dot_product_attention takes [B, H, T, D]), all f32 or all f64. If K is less
/// than H, which it must divide, H / K heads in turn have the same keys and values (grouped queries). With
/// `Causal`, query t attends to keys 0 to t. Memory is linear in T and S, time proportional to their product.
/// Differentiable once.
template <bool Causal, expression Q, expression K, expression V>
constexpr auto attention(Q q, K k, V v) {
  return apply<op::attention, attr<Causal, 0>>(std::move(q), std::move(k), std::move(v));
}
/// The same for queries at positions first, first + 1, ..., if those of the keys are 0, 1, ...: query t
/// attends to keys 0 to first + t. With keys and values of all earlier positions in a cache, it computes the
/// result of later ones. Throws shape_error if `first` is negative.
template <bool Causal, expression Q, expression K, expression V>
  requires Causal
constexpr auto attention(Q q, K k, V v, index_t first) {
  if (first < 0) refuse<shape_error>({"weft: attention: the position of the first query is ", first});
  return detail::apply_sized<op::attention, attr<Causal, dyn>>({first}, std::move(q), std::move(k),
                                                               std::move(v));
}

}  // namespace weft
