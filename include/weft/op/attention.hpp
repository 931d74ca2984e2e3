// SPDX-License-Identifier: MIT
// Scaled dot-product attention as one op, because its fused form is not local.
//
//   auto y = attention<causal>(q, k, v);      // [batch, position, head, feature] each
#pragma once

#include <weft/device/cpu/attention.hpp>
#include <weft/op/rule.hpp>

namespace weft::op {

template <bool Holds, class... Extents>
struct attention_law {
  static_assert(Holds, "weft: attention: queries, keys and values must have the same four extents "
                       "[batch, position, head, feature]");
};

namespace detail {
template <void (*F32)(const native_call&), void (*F64)(const native_call&)>
void by_type(const native_call& call) {
  call.in[0].type == dtype::f64 ? F64(call) : F32(call);
}
}  // namespace detail

/// Cotangents of queries (the value), keys and values (results 1 and 2).
struct attention_backward : rule<6> {
  static constexpr auto kind = op_kind::native;
  static constexpr auto name = "attention_backward";
  static constexpr int results = 3;
  static constexpr native_code code{
      &detail::by_type<&cpu::attention_backward<float>, &cpu::attention_backward<double>>};
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const form* operands) {
    return {true, operands[0]};
  }
  static constexpr form result_form(int k, const form* operands) { return operands[k]; }
};

/// softmax(q k^T / sqrt(features)) v per batch element and head. Result 1 is the logarithm of the
/// sum of exponentials of each row, [batch, head, position].
struct attention : rule<3> {
  static constexpr auto kind = op_kind::native;
  static constexpr auto name = "attention";
  static constexpr int results = 2;
  static constexpr native_code code{
      &detail::by_type<&cpu::attention<float>, &cpu::attention<double>>};
  template <bool Holds, class... Extents>
  using law = attention_law<Holds, Extents...>;

  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes&, const form* operands) {
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
  static constexpr form result_form(int, const form* operands) {
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

inline constexpr bool causal = true;

/// Attention over positions; `Causal` hides later ones. Memory is linear in positions.
template <bool Causal, expression Q, expression K, expression V>
constexpr auto attention(Q q, K k, V v) {
  return apply<op::attention, attr<Causal>>(std::move(q), std::move(k), std::move(v));
}

}  // namespace weft
