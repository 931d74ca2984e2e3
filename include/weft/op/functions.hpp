// SPDX-License-Identifier: MIT
// Element-wise functions and operators on expressions.
//
// Operands are expressions and numbers, and at least one is an expression. Shapes broadcast as in NumPy: they
// are aligned at the right, and static extents of 1 are repeated; a dynamic extent is never repeated. Static
// extents that differ do not compile; dynamic ones throw shape_error at evaluation. Operands are converted to
// their promoted type (`promoted`, base/dtype.hpp; a number takes the type of the tensor operand where it
// can); bf16 and f16 are computed in f32 and rounded once.
//
// The ops are declared here first, so that the derivative of each can use all functions. Inside namespace op
// a function needs its qualified name, weft::exp, because op::exp is the op.
//
//   auto y = where(x > 0.f, log1p(x), 0.f);
#pragma once

#include <limits>

#include <weft/expr/apply.hpp>

namespace weft::op {
struct add;
struct subtract;
struct multiply;
struct divide;
struct negate;
struct cast;
struct exp;
struct log;
struct log1p;
struct expm1;
struct sqrt;
struct rsqrt;
struct sin;
struct cos;
struct atan;
struct tanh;
struct erf;
struct abs;
struct sign;
struct floor;
struct clamp;
struct clamp_min;
struct clamp_max;
struct round;
struct pow;
struct maximum;
struct minimum;
struct equal;
struct less;
struct less_equal;
struct where;
struct logical_and;
struct logical_or;
struct logical_not;
}  // namespace weft::op

namespace weft {

/// a + b. Integers wrap modulo 2^bits; for bools, the disjunction, as in PyTorch.
template <operand A, operand B> requires operands<A, B>
constexpr auto operator+(A a, B b) { return apply<op::add>(std::move(a), std::move(b)); }
/// a - b. Integers wrap modulo 2^bits; not defined for bool.
template <operand A, operand B> requires operands<A, B>
constexpr auto operator-(A a, B b) { return apply<op::subtract>(std::move(a), std::move(b)); }
/// a * b. Integers wrap modulo 2^bits; for bools, the conjunction, as in PyTorch.
template <operand A, operand B> requires operands<A, B>
constexpr auto operator*(A a, B b) { return apply<op::multiply>(std::move(a), std::move(b)); }
/// a / b by IEEE division; integers and bool are converted to f32 first.
template <operand A, operand B> requires operands<A, B>
constexpr auto operator/(A a, B b) { return apply<op::divide>(std::move(a), std::move(b)); }
/// -a. Not defined for bool; u8 wraps modulo 256.
template <operand A> requires operands<A>
constexpr auto operator-(A a) { return apply<op::negate>(std::move(a)); }

/// The larger of a and b; NaN if either is. Equal operands receive half of the cotangent each, as in PyTorch.
template <operand A, operand B> requires operands<A, B>
constexpr auto maximum(A a, B b) { return apply<op::maximum>(std::move(a), std::move(b)); }
/// The smaller of a and b; NaN if either is. Equal operands receive half of the cotangent each, as in
/// PyTorch.
template <operand A, operand B> requires operands<A, B>
constexpr auto minimum(A a, B b) { return apply<op::minimum>(std::move(a), std::move(b)); }
/// a to the power b, as std::pow. Integers and bool become f32 (in PyTorch integer powers stay integers). The
/// cotangent of b is 0 where a is 0 and b is 0 or more.
template <operand A, operand B> requires operands<A, B>
constexpr auto pow(A a, B b) { return apply<op::pow>(std::move(a), std::move(b)); }

/// e to the power a. Integers and bool become f32, in this and all elementary functions below.
template <operand A> requires operands<A>
constexpr auto exp(A a) { return apply<op::exp>(std::move(a)); }
/// Natural logarithm: -infinity at 0, NaN below.
template <operand A> requires operands<A>
constexpr auto log(A a) { return apply<op::log>(std::move(a)); }
/// log(1 + a), accurate near 0; -infinity at -1, NaN below.
template <operand A> requires operands<A>
constexpr auto log1p(A a) { return apply<op::log1p>(std::move(a)); }
/// exp(a) - 1, accurate near 0.
template <operand A> requires operands<A>
constexpr auto expm1(A a) { return apply<op::expm1>(std::move(a)); }
/// Square root; NaN below 0. The derivative is infinite at 0.
template <operand A> requires operands<A>
constexpr auto sqrt(A a) { return apply<op::sqrt>(std::move(a)); }
/// 1 / sqrt(a); infinite at 0, NaN below.
template <operand A> requires operands<A>
constexpr auto rsqrt(A a) { return apply<op::rsqrt>(std::move(a)); }
/// Sine of an angle in radians; NaN at infinity.
template <operand A> requires operands<A>
constexpr auto sin(A a) { return apply<op::sin>(std::move(a)); }
/// Cosine of an angle in radians; NaN at infinity.
template <operand A> requires operands<A>
constexpr auto cos(A a) { return apply<op::cos>(std::move(a)); }
/// Arc tangent, in [-pi / 2, pi / 2].
template <operand A> requires operands<A>
constexpr auto atan(A a) { return apply<op::atan>(std::move(a)); }
/// Hyperbolic tangent.
template <operand A> requires operands<A>
constexpr auto tanh(A a) { return apply<op::tanh>(std::move(a)); }
/// Error function: 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to a.
template <operand A> requires operands<A>
constexpr auto erf(A a) { return apply<op::erf>(std::move(a)); }
/// Absolute value; not defined for bool. The derivative is sign(a), 0 at 0.
template <operand A> requires operands<A>
constexpr auto abs(A a) { return apply<op::abs>(std::move(a)); }
/// -1, 0 or 1 in the type of a; 0 for NaN, as in PyTorch. The derivative is 0.
template <operand A> requires operands<A>
constexpr auto sign(A a) { return apply<op::sign>(std::move(a)); }
/// Largest integer not above a, in the type of a; integers are returned unchanged. The derivative is 0.
template <operand A> requires operands<A>
constexpr auto floor(A a) { return apply<op::floor>(std::move(a)); }
/// The nearest integer, ties to even as in PyTorch, in the type of a; integers are returned unchanged. The
/// derivative is 0.
template <operand A> requires operands<A>
constexpr auto round(A a) { return apply<op::round>(std::move(a)); }

/// `x` converted to elements of type `T` (PyTorch's x.to(dtype)). Conversion from floating to integer
/// truncates; NaN becomes 0, and values out of range become the nearest integer of T. Integers convert to
/// other integer types modulo 2^bits. A bool is true where the element is not 0. The cotangent is converted
/// back.
template <element T, expression X>
constexpr auto cast(X x) {
  return apply<op::cast, attr<static_cast<index_t>(dtype_of<T>)>>(std::move(x));
}

namespace detail {
/// `e` with elements of type T; `e` itself if it already has that type.
template <element T, expression E>
constexpr auto in_type(E e) {
  if constexpr (std::is_same_v<T, typename E::value_type>) return e;
  else return cast<T>(std::move(e));
}

/// f(x...), a formula of several ops. Operands of bf16 and f16 are converted to f32 and the result is rounded
/// once, as for a single op.
template <class F, expression... X>
constexpr auto rounded_once(F f, X... x) {
  constexpr dtype t = [] {
    const dtype types[] = {dtype_of<typename X::value_type>...};
    dtype all = types[0];
    for (dtype each : types) all = promoted(all, each);
    return all;
  }();
  if constexpr (is_narrow(t)) return cast<element_of<t>>(f(cast<float>(std::move(x))...));
  else return f(std::move(x)...);
}
}  // namespace detail

/// a == b per element, as bool; false where either is NaN. No derivative.
template <operand A, operand B> requires operands<A, B>
constexpr auto equal(A a, B b) { return apply<op::equal>(std::move(a), std::move(b)); }
/// a < b per element, as bool; false where either is NaN. No derivative.
template <operand A, operand B> requires operands<A, B>
constexpr auto less(A a, B b) { return apply<op::less>(std::move(a), std::move(b)); }
/// a <= b per element, as bool; false where either is NaN. No derivative.
template <operand A, operand B> requires operands<A, B>
constexpr auto less_equal(A a, B b) { return apply<op::less_equal>(std::move(a), std::move(b)); }
/// Negation per element; the operand must be bool.
template <operand A> requires operands<A>
constexpr auto logical_not(A a) { return apply<op::logical_not>(std::move(a)); }
/// Conjunction per element; both operands must be bool.
template <operand A, operand B> requires operands<A, B>
constexpr auto logical_and(A a, B b) { return apply<op::logical_and>(std::move(a), std::move(b)); }
/// Disjunction per element; both operands must be bool.
template <operand A, operand B> requires operands<A, B>
constexpr auto logical_or(A a, B b) { return apply<op::logical_or>(std::move(a), std::move(b)); }
/// condition ? a : b per element. The condition must be bool; all three broadcast; a and b are converted to
/// their promoted type. The cotangent passes to the selected operand; the other receives 0, even where it is
/// NaN or infinite.
template <operand C, operand A, operand B> requires operands<C, A, B>
constexpr auto where(C condition, A a, B b) {
  return apply<op::where>(std::move(condition), std::move(a), std::move(b));
}

/// Comparison operators: element-wise, as the functions above, with bool results. NaN is unequal to itself.
template <operand A, operand B> requires operands<A, B>
constexpr auto operator==(A a, B b) { return equal(std::move(a), std::move(b)); }
template <operand A, operand B> requires operands<A, B>
constexpr auto operator!=(A a, B b) { return logical_not(equal(std::move(a), std::move(b))); }
template <operand A, operand B> requires operands<A, B>
constexpr auto operator<(A a, B b) { return less(std::move(a), std::move(b)); }
template <operand A, operand B> requires operands<A, B>
constexpr auto operator<=(A a, B b) { return less_equal(std::move(a), std::move(b)); }
template <operand A, operand B> requires operands<A, B>
constexpr auto operator>(A a, B b) { return less(std::move(b), std::move(a)); }
template <operand A, operand B> requires operands<A, B>
constexpr auto operator>=(A a, B b) { return less_equal(std::move(b), std::move(a)); }

/// logical_and, logical_or and logical_not of bools: PyTorch's `&`, `|` and `~`. `&&` and `||` are not
/// provided, since overloads would not short-circuit.
template <operand A, operand B> requires operands<A, B>
constexpr auto operator&(A a, B b) { return logical_and(std::move(a), std::move(b)); }
template <operand A, operand B> requires operands<A, B>
constexpr auto operator|(A a, B b) { return logical_or(std::move(a), std::move(b)); }
template <operand A> requires operands<A>
constexpr auto operator!(A a) { return logical_not(std::move(a)); }
template <operand A> requires operands<A>
constexpr auto operator~(A a) { return logical_not(std::move(a)); }

/// Whether an element is neither infinite nor NaN; always true for integers and bool.
template <expression A>
constexpr auto isfinite(A a) { return std::move(a) * 0 == 0; }
/// Whether an element is NaN.
template <expression A>
constexpr auto isnan(A a) {
  if constexpr (is_floating(dtype_of<typename A::value_type>))
    return logical_not(std::move(a) <= std::numeric_limits<double>::infinity());
  else return logical_not(isfinite(std::move(a)));
}

/// min(max(x, low), high) per element: `high` where low > high, NaN where an operand is NaN. As in PyTorch,
/// the cotangent passes to x where low <= x <= high, and to a bound where it replaces x.
template <operand X, operand L, operand H> requires operands<X, L, H>
constexpr auto clamp(X x, L low, H high) {
  return apply<op::clamp>(std::move(x), std::move(low), std::move(high));
}
/// max(x, low) per element; NaN where an operand is. As in PyTorch, the cotangent passes to x where low <= x,
/// also at the bound (`maximum` passes half of it), and to `low` where x < low.
///   auto gap = clamp_min(1 - y * score, 0);        // torch.clamp(1 - y * score, min=0)
template <operand X, operand L>
  requires operands<X, L>
constexpr auto clamp_min(X x, L low) {
  return apply<op::clamp_min>(std::move(x), std::move(low));
}
/// min(x, high) per element; otherwise as clamp_min.
template <operand X, operand H>
  requires operands<X, H>
constexpr auto clamp_max(X x, H high) {
  return apply<op::clamp_max>(std::move(x), std::move(high));
}

}  // namespace weft
