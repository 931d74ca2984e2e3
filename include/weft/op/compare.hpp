// SPDX-License-Identifier: MIT
// Comparisons, logical functions, and selection by a condition.
//
// Comparisons return bool and have no derivative. `where` passes the cotangent to the selected operand.
//
//   auto clipped = where(less(x, 0.f), 0.f, x);
#pragma once

#include <weft/op/elementwise.hpp>

namespace weft::op {

/// Base of comparisons: operands are converted to their promoted type, the result is bool; no derivative.
struct comparison : primitive<2> {
  static constexpr dtype result_type(dtype) { return dtype::boolean; }
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes&, const tensor_spec* operands) {
    inferred result = broadcast_all(dims, operands, 2);
    result.value.type = dtype::boolean;
    return result;
  }
  static constexpr auto vjp(auto g, auto, auto, auto) {
    return std::array{no_gradient(g), no_gradient(g)};
  }
};

/// a == b; false where either is NaN.
struct equal : comparison {
  static constexpr auto name = "equal";
  static constexpr auto text = "a == b";
  template <class V> static WEFT_INLINE simd::mask_of<V> lane(V a, V b) { return simd::equal(a, b); }
};

/// a < b; false where either is NaN.
struct less : comparison {
  static constexpr auto name = "less";
  static constexpr auto text = "a < b";
  template <class V> static WEFT_INLINE simd::mask_of<V> lane(V a, V b) { return simd::less(a, b); }
};

/// a <= b; false where either is NaN.
struct less_equal : comparison {
  static constexpr auto name = "less_equal";
  static constexpr auto text = "a <= b";
  template <class V> static WEFT_INLINE simd::mask_of<V> lane(V a, V b) { return simd::less_equal(a, b); }
};

/// The compile-time error for operands of a logical op that are not bool.
template <bool Holds, class... Types>
struct logical_type_law {
  static_assert(Holds, "weft: logical ops take bools: write x != 0 for a number x");
};

/// Base of logical functions: operands and result are bool; no derivative.
template <int Arity>
struct logical : primitive<Arity> {
  static constexpr bool widens = false;
  template <bool Holds, class... Types>
  using type_law = logical_type_law<Holds, Types...>;
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes&, const tensor_spec* operands) {
    inferred result = broadcast_all(dims, operands, Arity);
    for (int i = 0; i < Arity; ++i) result.types_fit &= operands[i].type == dtype::boolean;
    return result;
  }
};

/// Conjunction of bools.
struct logical_and : logical<2> {
  static constexpr auto name = "logical_and";
  static constexpr auto text = "a && b";
  template <class V>
    requires requires(V a) { a & a; }
  static WEFT_INLINE V lane(V a, V b) {
    return a & b;
  }
  static constexpr auto vjp(auto g, auto, auto, auto) {
    return std::array{no_gradient(g), no_gradient(g)};
  }
};

/// Disjunction of bools.
struct logical_or : logical<2> {
  static constexpr auto name = "logical_or";
  static constexpr auto text = "a || b";
  template <class V>
    requires requires(V a) { a | a; }
  static WEFT_INLINE V lane(V a, V b) {
    return a | b;
  }
  static constexpr auto vjp(auto g, auto, auto, auto) {
    return std::array{no_gradient(g), no_gradient(g)};
  }
};

/// Negation of a bool.
struct logical_not : logical<1> {
  static constexpr auto name = "logical_not";
  static constexpr auto text = "!a";
  template <class V>
    requires requires(V a) { ~a; }
  static WEFT_INLINE V lane(V a) {
    return ~a;
  }
  static constexpr auto vjp(auto g, auto, auto) { return no_gradient(g); }
};

/// condition ? a : b per element. The condition is bool; the result has the promoted type of a and b.
struct where : primitive<3> {
  static constexpr auto name = "where";
  static constexpr auto text = "a ? b : c";
  template <class V> static WEFT_INLINE V lane(simd::mask_of<V> m, V a, V b) { return simd::select(m, a, b); }
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes&, const tensor_spec* operands) {
    inferred result = broadcast_all(dims, operands, 3);
    result.value.type = promoted(operands[1].type, operands[2].type);
    result.types_fit = operands[0].type == dtype::boolean;
    return result;
  }
  static constexpr auto vjp(auto g, auto, auto condition, auto, auto) {
    return std::array{no_gradient(g), weft::where(condition, g, 0), weft::where(condition, 0, g)};
  }
};

}  // namespace weft::op
