// SPDX-License-Identifier: MIT
// The primitive element-wise ops: arithmetic and elementary functions, from which the other element-wise ops
// are composed.
//
// Each is one instruction of a fused kernel: `lane` on the CPU, `text` in OpenCL C and CUDA C++ with the
// operands named a, b, c. Integers are computed as integers; `/` and the elementary functions convert them to
// f32, as in PyTorch.
#pragma once

#include <weft/device/power.hpp>
#include <weft/op/functions.hpp>
#include <weft/op/rule.hpp>

namespace weft::op {

/// The interval from which law tests sample the operands of an op.
struct interval {
  double low, high;
};

/// Base of primitives with floating operands: integers and bool are converted to f32 first.
template <int Arity>
struct floating_primitive : primitive<Arity> {
  static constexpr dtype operand_type(dtype t) { return floating(t); }
  static constexpr dtype result_type(dtype t) { return floating(t); }
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes&, const tensor_spec* operands) {
    inferred result = broadcast_all(dims, operands, Arity);
    result.value.type = floating(result.value.type);
    return result;
  }
};

/// a + b; for bools, the disjunction.
struct add : primitive<2> {
  static constexpr auto name = "add";
  static constexpr auto text = "a + b";
  template <class V> static WEFT_INLINE V lane(V a, V b) { return simd::sum(a, b); }
  static constexpr auto vjp(auto g, auto, auto, auto) { return std::array{g, g}; }
};

/// a - b; not defined for bool.
struct subtract : on_numbers<primitive<2>> {
  static constexpr auto name = "subtract";
  static constexpr auto text = "a - b";
  template <class V> static WEFT_INLINE V lane(V a, V b) { return simd::difference(a, b); }
  static constexpr auto vjp(auto g, auto, auto, auto) { return std::array{g, -g}; }
};

/// a * b; for bools, the conjunction.
struct multiply : primitive<2> {
  static constexpr auto name = "multiply";
  static constexpr auto text = "a * b";
  template <class V> static WEFT_INLINE V lane(V a, V b) { return simd::multiply(a, b); }
  static constexpr auto vjp(auto g, auto, auto a, auto b) { return std::array{g * b, g * a}; }
};

/// a / b; integers and bool are converted to f32.
struct divide : floating_primitive<2> {
  static constexpr auto name = "divide";
  static constexpr auto text = "a / b";
  static constexpr interval domain{0.5, 2};
  template <class V> static WEFT_INLINE V lane(V a, V b) { return a / b; }
  static constexpr auto vjp(auto g, auto y, auto, auto b) {
    return std::array{g / b, -(g * (y / b))};  // g / b times y would be NaN where g / b overflows and y is 0
  }
};

/// -a; not defined for bool.
struct negate : on_numbers<primitive<1>> {
  static constexpr auto name = "negate";
  static constexpr auto text = "-a";
  template <class V> static WEFT_INLINE V lane(V a) { return simd::negative(a); }
  static constexpr auto vjp(auto g, auto, auto) { return -g; }
};

/// Cotangents of the operands of `maximum` and `minimum`: the selected operand receives g. Where the operands
/// are equal, each receives half of it; where one is NaN, each receives all of it, as in PyTorch.
constexpr auto shared_by_choice(auto g, auto a, auto b, auto passed_a, auto passed_b) {
  const auto part = weft::where(weft::equal(a, b), g * 0.5, g);
  return std::array{weft::where(passed_a, 0, part), weft::where(passed_b, 0, part)};
}

/// The larger of two; NaN if either is. Equal operands receive half of the cotangent each.
struct maximum : primitive<2> {
  static constexpr auto name = "maximum";
  static constexpr auto text = "(a > b || a != a) ? a : b";
  template <class V> static WEFT_INLINE V lane(V a, V b) { return simd::maximum(a, b); }
  static constexpr auto vjp(auto g, auto, auto a, auto b) {
    return shared_by_choice(g, a, b, weft::less(a, b), weft::less(b, a));
  }
};

/// The smaller of two; NaN if either is. Equal operands receive half of the cotangent each.
struct minimum : primitive<2> {
  static constexpr auto name = "minimum";
  static constexpr auto text = "(a < b || a != a) ? a : b";
  template <class V> static WEFT_INLINE V lane(V a, V b) { return simd::minimum(a, b); }
  static constexpr auto vjp(auto g, auto, auto a, auto b) {
    return shared_by_choice(g, a, b, weft::less(b, a), weft::less(a, b));
  }
};

/// a to the power b. The cotangent of b is 0 where a is 0 and b is 0 or more, as in PyTorch.
struct pow : floating_primitive<2> {
  static constexpr auto name = "pow";
  static constexpr auto text = "pow(a, b)";
  static constexpr interval domain{0.5, 2};
  template <class V> static WEFT_INLINE V lane(V a, V b) { return math::pow(a, b); }
  static constexpr auto vjp(auto g, auto y, auto a, auto b) {
    const auto is_constant = weft::equal(b, 0);
    const auto below = weft::where(is_constant, 1, b) - 1;  // keeps derivatives finite where it is not used
    const auto slope = weft::where(is_constant, 0, b * weft::pow(a, below));
    const auto flat = weft::logical_and(weft::equal(a, 0), weft::less_equal(0, b));
    return std::array{g * slope, g * (y * weft::log(weft::where(flat, 1, a)))};
  }
};

/// e to the power a.
struct exp : floating_primitive<1> {
  static constexpr auto name = "exp";
  static constexpr auto text = "exp(a)";
  template <class V> static WEFT_INLINE V lane(V a) { return math::exp(a); }
  static constexpr auto vjp(auto g, auto y, auto) { return g * y; }
};

/// Natural logarithm: -infinity at 0, NaN below.
struct log : floating_primitive<1> {
  static constexpr auto name = "log";
  static constexpr auto text = "log(a)";
  static constexpr interval domain{0.1, 4};
  template <class V> static WEFT_INLINE V lane(V a) { return math::log(a); }
  static constexpr auto vjp(auto g, auto, auto a) { return g / a; }
};

/// log(1 + x), accurate near 0.
struct log1p : floating_primitive<1> {
  static constexpr auto name = "log1p";
  static constexpr auto text = "log1p(a)";
  static constexpr interval domain{-0.5, 2};
  template <class V> static WEFT_INLINE V lane(V a) { return math::log1p(a); }
  static constexpr auto vjp(auto g, auto, auto a) { return g / (a + 1); }
};

/// exp(x) - 1, accurate near 0.
struct expm1 : floating_primitive<1> {
  static constexpr auto name = "expm1";
  static constexpr auto text = "expm1(a)";
  template <class V> static WEFT_INLINE V lane(V a) { return math::expm1(a); }
  static constexpr auto vjp(auto g, auto y, auto) { return g * (y + 1); }
};

/// Square root; NaN below 0. The derivative is infinite at 0.
struct sqrt : floating_primitive<1> {
  static constexpr auto name = "sqrt";
  static constexpr auto text = "sqrt(a)";
  static constexpr interval domain{0.1, 4};
  template <class V> static WEFT_INLINE V lane(V a) { return math::sqrt(a); }
  static constexpr auto vjp(auto g, auto y, auto) { return g * 0.5 / y; }
};

/// 1 / sqrt(x).
struct rsqrt : floating_primitive<1> {
  static constexpr auto name = "rsqrt";
  static constexpr auto text = "1 / sqrt(a)";
  static constexpr interval domain{0.1, 4};
  template <class V> static WEFT_INLINE V lane(V a) { return 1 / math::sqrt(a); }
  static constexpr auto vjp(auto g, auto y, auto) { return g * y * y * (-0.5 * y); }  // y * y * y may be 0
};

/// Sine of an angle in radians.
struct sin : floating_primitive<1> {
  static constexpr auto name = "sin";
  static constexpr auto text = "sin(a)";
  template <class V> static WEFT_INLINE V lane(V a) { return math::sin(a); }
  static constexpr auto vjp(auto g, auto, auto a) { return g * weft::cos(a); }
};

/// Cosine of an angle in radians.
struct cos : floating_primitive<1> {
  static constexpr auto name = "cos";
  static constexpr auto text = "cos(a)";
  template <class V> static WEFT_INLINE V lane(V a) { return math::cos(a); }
  static constexpr auto vjp(auto g, auto, auto a) { return -(g * weft::sin(a)); }
};

/// Arc tangent.
struct atan : floating_primitive<1> {
  static constexpr auto name = "atan";
  static constexpr auto text = "atan(a)";
  template <class V> static WEFT_INLINE V lane(V a) { return math::atan(a); }
  static constexpr auto vjp(auto g, auto, auto a) { return g / (1 + a * a); }
};

/// Hyperbolic tangent.
struct tanh : floating_primitive<1> {
  static constexpr auto name = "tanh";
  static constexpr auto text = "tanh(a)";
  template <class V> static WEFT_INLINE V lane(V a) { return math::tanh(a); }
  static constexpr auto vjp(auto g, auto y, auto) { return g * (1 - y * y); }
};

/// Error function: 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x.
struct erf : floating_primitive<1> {
  static constexpr auto name = "erf";
  static constexpr auto text = "erf(a)";
  template <class V> static WEFT_INLINE V lane(V a) { return math::erf(a); }
  static constexpr auto vjp(auto g, auto, auto a) {
    return g * (weft::exp(-(a * a)) * 1.12837916709551257390);
  }
};

/// Absolute value, +0 for -0; not defined for bool. The derivative is sign(a), which is 0 at 0.
struct abs : on_numbers<primitive<1>> {
  static constexpr auto name = "abs";
  static constexpr auto text = "a <= 0 ? 0 - a : a";  // -0 becomes 0
  template <class V> static WEFT_INLINE V lane(V a) { return math::abs(a); }
  static constexpr auto vjp(auto g, auto, auto a) { return g * weft::sign(a); }
};

/// -1, 0 or 1; 0 for NaN, as in PyTorch. Its derivative is 0.
struct sign : primitive<1> {
  static constexpr auto name = "sign";
  static constexpr auto text = "a > 0 ? 1 : a < 0 ? -1 : 0";
  template <class V> static WEFT_INLINE V lane(V a) {
    using T = simd::lane<V>;
    const V below = simd::select(simd::less(a, V{}), simd::splat<V>(T(-1)), V{});
    return simd::select(simd::less(V{}, a), simd::splat<V>(T{1}), below);
  }
  static constexpr auto vjp(auto g, auto, auto) { return no_gradient(g); }
};

/// Largest integer not above a, in the type of a. Integers are returned unchanged: graph/simplify.hpp removes
/// the instruction. The derivative is 0.
struct floor : primitive<1> {
  static constexpr auto name = "floor";
  static constexpr auto text = "floor(a)";
  template <class V> static WEFT_INLINE V lane(V a) { return math::floor(a); }
  static constexpr auto vjp(auto g, auto, auto) { return no_gradient(g); }
};

/// The nearest integer, ties to even. Integers are returned unchanged. The derivative is 0.
struct round : primitive<1> {
  static constexpr auto name = "round";
  static constexpr auto text = "rint(a)";
  template <class V> static WEFT_INLINE V lane(V a) { return math::round(a); }
  static constexpr auto vjp(auto g, auto, auto) { return no_gradient(g); }
};

/// Base of formulas that select one of their operands; the result has their promoted type.
template <int Arity>
struct selection : composed<Arity> {
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes&, const tensor_spec* operands) {
    return broadcast_all(dims, operands, Arity);
  }
};

/// min(max(x, low), high). As in PyTorch, the cotangent passes to x where low <= x <= high, and to a bound
/// where it replaces x.
struct clamp : selection<3> {
  static constexpr auto name = "clamp";
  static constexpr auto value(auto x, auto low, auto high) {
    return weft::minimum(weft::maximum(x, low), high);
  }
  static constexpr auto vjp(auto g, auto, auto x, auto low, auto high) {
    const auto inside = weft::logical_and(weft::less_equal(low, x), weft::less_equal(x, high));
    const auto raised = weft::logical_and(weft::less(x, low), weft::less(low, high));
    const auto lowered = weft::logical_or(weft::less(high, x), weft::less(high, low));
    return std::array{weft::where(inside, g, 0), weft::where(raised, g, 0), weft::where(lowered, g, 0)};
  }
};

/// max(x, low). As in PyTorch, the cotangent passes to x where low <= x, and to low where x < low.
struct clamp_min : selection<2> {
  static constexpr auto name = "clamp_min";
  static constexpr auto value(auto x, auto low) { return weft::maximum(x, low); }
  static constexpr auto vjp(auto g, auto, auto x, auto low) {
    return std::array{weft::where(weft::less_equal(low, x), g, 0), weft::where(weft::less(x, low), g, 0)};
  }
};

/// min(x, high). As in PyTorch, the cotangent passes to x where x <= high, and to high where high < x.
struct clamp_max : selection<2> {
  static constexpr auto name = "clamp_max";
  static constexpr auto value(auto x, auto high) { return weft::minimum(x, high); }
  static constexpr auto vjp(auto g, auto, auto x, auto high) {
    return std::array{weft::where(weft::less_equal(x, high), g, 0), weft::where(weft::less(high, x), g, 0)};
  }
};

/// Conversion to another dtype, given as the attribute. For rounding and values out of range see `converted`
/// in base/dtype.hpp.
struct cast : primitive<1> {
  static constexpr auto name = "cast";
  static constexpr auto text = "a";
  static constexpr bool widens = false;
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes& at, const tensor_spec* operands) {
    return {true, {static_cast<dtype>(at[0]), operands[0].extents}};
  }
  static constexpr auto vjp(auto g, auto, auto a) { return cast_to(g, a.type()); }
};

/// x, given together with `copy`, which holds x already rounded, so that programs that read x need not round
/// it again. The cotangent is that of x.
struct rounded_before : rule<2> {
  static constexpr auto kind = op_kind::composed;
  static constexpr auto name = "rounded_before";
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes&, const tensor_spec* operands) {
    const shape &x = operands[0].extents, &copy = operands[1].extents;
    inferred result{x.order == copy.order, operands[0]};
    for (int i = 0; i < x.order && result.holds; ++i)
      result.holds = dims.unify(x[i], copy[i], result.value.extents[i]);
    return result;
  }
  static constexpr auto value(auto x, auto copy) { return cast_to(copy, x.type()); }
  static constexpr auto vjp(auto g, auto, auto, auto) { return std::array{g, no_gradient(g)}; }
};

}  // namespace weft::op

namespace weft {
/// Whether element-wise ops accept operands of these shapes together.
template <class A, class B>
concept broadcast_compatible = accepts<op::add, attr<>, A, B>;
}  // namespace weft
