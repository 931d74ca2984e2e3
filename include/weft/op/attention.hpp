// SPDX-License-Identifier: MIT
// Scaled dot-product attention as one op: its fused form is not an element-wise or row computation that
// fusion could find.
//
//   auto y = attention<causal>(q, k, v);      // [batch, position, head, feature] each
#pragma once

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

/// The derivative of `attention`: cotangents of queries (the value), keys and values (results 1 and 2). Has
/// no derivative itself.
struct attention_backward : rule<6> {
  static constexpr auto kind = op_kind::native;
  static constexpr auto name = "attention_backward";
  static constexpr auto divides = "b.h. b.h. b.h. b.h. bh. b.h. -> b.h. b.h. b.h.";
  static constexpr int results = 3;
  static constexpr unsigned extents = 0b10;
  static constexpr native_code code{.op = native_op::attention_backward};
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
  static constexpr native_code code{.op = native_op::attention};
  template <bool Holds, class... Extents>
  using law = attention_law<Holds, Extents...>;

  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes&, const tensor_spec* operands) {
    inferred result{operands[0].extents.order == 4, operands[0]};
    for (int i = 1; i < 3; ++i) {
      result.types_fit &= operands[i].type == operands[0].type;
      result.holds &= operands[i].extents.order == 4;
    }
    result.types_fit &= is_floating(operands[0].type);
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
    return {compute_type(operands[0].type), {3, {s[0], s[2], s[1]}}};
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
/// [B, S, K, D] (PyTorch's scaled_dot_product_attention takes [B, H, T, D]), of one floating type; for bf16
/// and f16 all is computed in f32, and the result rounded. If K is less than H, which it must divide, H / K
/// heads in turn have the same keys and values (grouped queries). With `Causal`, query t attends to keys 0 to
/// t. Memory is linear in T and S, time proportional to their product. Differentiable once.
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
