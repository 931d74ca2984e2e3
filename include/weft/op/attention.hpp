// SPDX-License-Identifier: MIT
// Scaled dot-product attention as one op, because fusion could not find its fused form, which is neither an
// element-wise nor a row computation.
//
//   auto y = attention<causal>(q, k, v);      // [batch, position, head, feature] each
#pragma once

#include <weft/op/contraction.hpp>
#include <weft/op/functions.hpp>

namespace weft::op {

/// The compile-time error for queries, keys and values whose shapes do not match.
template <bool Holds, class... Extents>
struct attention_law {
  static_assert(Holds,
                "weft: attention: queries must be [batch, queries, heads, features], keys and values [batch, "
                "keys, key heads, features], with equal batch, features, keys and key heads, and key heads "
                "must divide heads");
};

/// The compile-time error for an attention mask whose shape does not match.
template <bool Holds, class... Extents>
struct attention_mask_law {
  static_assert(Holds,
                "weft: attention: a mask must be [batch, heads, queries, keys], or broadcast to that, for "
                "queries [batch, queries, heads, features], keys and values [batch, keys, key heads, "
                "features], with equal batch, features, keys and key heads, and key heads must divide heads");
};
/// The compile-time error for an attention mask of an unsupported type.
template <bool Holds, class... Types>
struct attention_mask_type_law {
  static_assert(Holds,
                "weft: attention: queries, keys and values must have the same floating type; a mask must be "
                "bool, of that type or f32");
};

namespace detail {
/// x [batch, position, head, feature] as [batch, key head, head of its group, position, feature]; for keys
/// and values, `group` is 1.
constexpr auto by_head(auto x, index_t key_heads, index_t group) {
  const shape s = x.extents();
  const auto parted = reshape_to(x, shape{5, {s[0], s[1], key_heads, group, s[3]}});
  return permute_dims(parted, {{0, 2, 3, 1, 4}, 5});
}
/// The inverse, with the result shape `s`.
constexpr auto by_position(auto x, const shape& s) {
  return reshape_to(permute_dims(x, {{0, 3, 1, 2, 4}, 5}), s);
}
/// Whether each query attends to each key if it sees no later ones, where the first query is at position
/// `first`: [query, key].
constexpr auto seen_keys(auto& graph, index_t first, index_t queries, index_t keys) {
  const auto position = graph.coordinate(queries, dtype::i64) + graph.extent(first, dtype::i64);
  return weft::less_equal(graph.coordinate(keys, dtype::i64), reshape_to(position, shape{2, {queries, 1}}));
}
/// The number of query heads that share the same keys and values.
constexpr index_t heads_in_group(symbol_table& dims, const shape& queries, const shape& keys) {
  return keys[2] == 0 ? 1 : dims.divide(queries[2], keys[2]);
}
}  // namespace detail

/// The derivative of `attention`: cotangents of queries (the value), keys and values (results 1 and 2).
struct attention_backward : rule<6> {
  static constexpr auto kind = op_kind::native;
  static constexpr auto name = "attention_backward";
  static constexpr auto divides = "b.h. b.h. b.h. b.h. bh. b.h. -> b.h. b.h. b.h.";
  static constexpr int results = 3, cotangents = 3;
  static constexpr unsigned extents = 0b10;
  static constexpr native_code code{.any_result_strides = true, .op = native_op::attention_backward};
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    return {true, operands[0]};
  }
  static constexpr tensor_spec result_spec(int k, const tensor_spec* operands) { return operands[k]; }

  /// With scores s, weights p = softmax(s) and the change s' of the scores in the direction c, y changes by
  /// p' v + p c[2], where p' = p (s' - sum(p s')). So the sum of c times the cotangents is that of g times
  /// this change, and its derivatives are products of matrices with one number per query and key. y and
  /// log_sums are functions of q, k and v here; log_sums only keep exponentials small. Values are [batch, key
  /// head, head of its group, position, feature].
  static constexpr auto vjp(auto c, auto y, auto q, auto k, auto v, auto, auto log_sums, auto g) {
    auto& graph = *q.owner;
    const shape queries = q.extents(), keys = k.extents();
    const index_t heads = keys[2], group = detail::heads_in_group(graph.dims, queries, keys);
    const dtype t = compute_type(q.type());
    const auto by_head = [&](auto x, index_t of) { return detail::by_head(cast_to(x, t), heads, of); };
    const auto product = [&](auto a, auto b) { return graph.template apply<matmul>({}, a, b); };
    const auto row_sums = [](auto x) { return sum_dims(x, 4, 5); };

    const auto at_q = by_head(q, group), at_g = by_head(g, group), to_q = by_head(c[0], group);
    const auto at_k = by_head(k, 1), at_v = by_head(v, 1), to_k = by_head(c[1], 1), to_v = by_head(c[2], 1);
    const auto scale = weft::rsqrt(element_count(at_q, {1, {queries[3]}}));
    const auto logs = reshape_to(log_sums, shape{5, {queries[0], heads, group, queries[1], 1}});
    auto exponent = product(at_q, transposed(at_k)) * scale - constant_in_derivative(logs);
    if (y.attribute(0)) {
      const auto seen = detail::seen_keys(graph, y.attribute(1), queries[1], keys[1]);
      exponent = weft::where(seen, exponent, -__builtin_inf());
    }
    const auto power = weft::exp(exponent), p = power / row_sums(power);
    const auto s1 = (product(to_q, transposed(at_k)) + product(at_q, transposed(to_k))) * scale;
    const auto centred = s1 - row_sums(p * s1), p1 = p * centred;
    const auto of_p = product(at_g, transposed(at_v)), of_p_centred = of_p - row_sums(p * of_p);
    const auto of_s1 = p * of_p_centred;
    const auto u = centred * of_p_centred + product(at_g, transposed(to_v));
    const auto of_s = p * (u - row_sums(p * u));
    const auto of_q = (product(of_s, at_k) + product(of_s1, to_k)) * scale;
    const auto of_k = (product(transposed(of_s), at_q) + product(transposed(of_s1), to_q)) * scale;
    const auto of_v = product(transposed(p1), at_g), of_g = product(p1, at_v) + product(p, to_v);
    const auto none = no_gradient(q);
    return std::array{detail::by_position(of_q, queries),
                      detail::by_position(sum_dims(of_k, 2, 3), keys),
                      detail::by_position(sum_dims(of_v, 2, 3), keys),
                      none,
                      none,
                      detail::by_position(of_g, queries)};
  }
};

/// softmax(q k^T / sqrt(features)) v per batch element and head, without storing the scores (Dao et al.,
/// "FlashAttention", 2022). Attributes: whether it is causal; the position of the first query if the first
/// key is at position 0. Result 1 is the logarithm of the sum of exponentials of each row,
/// [batch, head, position], which the backward pass reads.
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
    if (q[2] != k[2]) dims.divide(q[2], k[2]);  // checked at run time if it is not known now
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

/// Attention with a mask, operand 3, which excludes scores where it is false, or is added to them. A formula,
/// so the scores are stored as values. Rows whose scores are all excluded are zeros. v0: whether it is also
/// causal.
struct masked_attention : composed<4> {
  static constexpr auto name = "masked_attention";
  template <bool Holds, class... Extents>
  using law = attention_mask_law<Holds, Extents...>;
  template <bool Holds, class... Types>
  using type_law = attention_mask_type_law<Holds, Types...>;

  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    inferred result = attention::infer(dims, at, operands);
    const auto& [type, mask] = operands[3];
    result.types_fit &= type == dtype::boolean || type == operands[0].type || type == dtype::f32;
    result.holds = result.holds && mask.order <= 4;
    if (!result.holds) return result;
    const shape& q = result.value.extents;
    const shape scores{4, {q[0], q[2], q[1], operands[1].extents[1]}};
    for (int d = 0; d < mask.order; ++d) {
      index_t both = mask.from_right(d);
      if (both == 1) continue;
      result.holds &= dims.unify(both, scores.from_right(d), both, check_kind::equal_in_broadcast);
    }
    return result;
  }
  static constexpr auto value(const attributes& at, auto q, auto k, auto v, auto mask) {
    auto& graph = *q.owner;
    const shape queries = q.extents(), keys = k.extents(), given = mask.extents();
    const index_t heads = keys[2], group = detail::heads_in_group(graph.dims, queries, keys);
    const dtype t = compute_type(q.type());
    const auto by_head = [&](auto x, index_t of) { return detail::by_head(cast_to(x, t), heads, of); };
    const auto product = [&](auto a, auto b) { return graph.template apply<matmul>({}, a, b); };
    shape in_groups{5, {1, 1, 1, 1, 1}};
    for (int d = 0; d < given.order; ++d) in_groups[d < 2 ? 4 - d : d == 2 ? 1 : 0] = given.from_right(d);
    if (in_groups[1] != 1) in_groups[1] = heads, in_groups[2] = group;
    const auto allowed = reshape_to(mask, in_groups), of_q = by_head(q, group);
    const auto all =
        product(of_q, transposed(by_head(k, 1))) * weft::rsqrt(element_count(of_q, {1, {queries[3]}}));
    constexpr double infinity = __builtin_inf();
    auto scores =
        mask.type() == dtype::boolean ? weft::where(allowed, all, -infinity) : all + cast_to(allowed, t);
    if (at[0]) scores = weft::where(detail::seen_keys(graph, 0, queries[1], keys[1]), scores, -infinity);
    const auto top = constant_in_derivative(max_dims(scores, 4, 5));
    const auto p = weft::exp(scores - weft::where(weft::equal(top, -infinity), 0, top));
    const auto total = sum_dims(p, 4, 5);
    const auto weights = p / weft::where(weft::equal(total, 0), 1, total);
    return detail::by_position(product(weights, by_head(v, 1)), queries);
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
/// [B, S, K, D] (PyTorch's scaled_dot_product_attention takes [B, H, T, D]), all of one floating type; bf16
/// and f16 are computed in f32 and the result is rounded. K must divide H; if K is less than H, each H / K
/// consecutive heads share keys and values (grouped queries). With `Causal`, query t attends to keys 0 to t.
/// Memory is linear in T and S and time is proportional to T S; second derivatives take memory proportional
/// to T S, too, and are not supported where ranks divide positions (axis cp).
template <bool Causal, expression Q, expression K, expression V>
constexpr auto attention(Q q, K k, V v) {
  return apply<op::attention, attr<Causal, 0>>(std::move(q), std::move(k), std::move(v));
}
/// The same for queries at positions first, first + 1, ..., with keys at positions 0, 1, ...: query t attends
/// to keys 0 to first + t. With the keys and values of all earlier positions in a cache, it computes the
/// result for later ones. Throws shape_error if `first` is negative.
template <bool Causal, expression Q, expression K, expression V>
  requires Causal
constexpr auto attention(Q q, K k, V v, index_t first) {
  if (first < 0)
    refuse<shape_error>({"weft: attention: the position of the first query must be 0 or more, not ", first});
  return detail::apply_sized<op::attention, attr<Causal, dyn>>({first}, std::move(q), std::move(k),
                                                               std::move(v));
}
/// Attention with a mask [B, H, T, S], or one that broadcasts to it, such as [B, 1, 1, S] or [T, S]. Keys
/// where a bool mask is false are not attended to; a mask of f32 or of the type of q, k and v is added to the
/// scores. A query that attends to no key has the value 0. PyTorch's attn_mask; with `Causal`, query t sees
/// only keys 0 to t of these. A formula: the B H T S scores are stored, and are kept for the backward pass.
/// Differentiable any number of times, also in the mask.
///   auto y = attention(q, k, v, unsqueeze<1>(unsqueeze<1>(is_token)));              // bool [B, S]
template <bool Causal = false, expression Q, expression K, expression V, expression Mask>
constexpr auto attention(Q q, K k, V v, Mask mask) {
  return apply<op::masked_attention, attr<Causal>>(std::move(q), std::move(k), std::move(v), std::move(mask));
}

}  // namespace weft
