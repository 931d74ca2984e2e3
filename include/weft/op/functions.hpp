// SPDX-License-Identifier: MIT
// The element-wise functions that users call, and formulas of ops too.
//
// They are declared before the ops, so that the derivative of each may use all others. Inside
// namespace op a function is called by its full name, weft::exp, because op::exp is its op.
//
//   auto y = where(x > 0.f, log1p(x), 0.f);
#pragma once

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
struct tanh;
struct erf;
struct abs;
struct sign;
struct floor;
struct clamp;
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

template <operand A, operand B> requires operands<A, B>
constexpr auto operator+(A a, B b) { return apply<op::add>(std::move(a), std::move(b)); }
template <operand A, operand B> requires operands<A, B>
constexpr auto operator-(A a, B b) { return apply<op::subtract>(std::move(a), std::move(b)); }
template <operand A, operand B> requires operands<A, B>
constexpr auto operator*(A a, B b) { return apply<op::multiply>(std::move(a), std::move(b)); }
template <operand A, operand B> requires operands<A, B>
constexpr auto operator/(A a, B b) { return apply<op::divide>(std::move(a), std::move(b)); }
template <operand A> requires operands<A>
constexpr auto operator-(A a) { return apply<op::negate>(std::move(a)); }

template <operand A, operand B> requires operands<A, B>
constexpr auto maximum(A a, B b) { return apply<op::maximum>(std::move(a), std::move(b)); }
template <operand A, operand B> requires operands<A, B>
constexpr auto minimum(A a, B b) { return apply<op::minimum>(std::move(a), std::move(b)); }
template <operand A, operand B> requires operands<A, B>
constexpr auto pow(A a, B b) { return apply<op::pow>(std::move(a), std::move(b)); }

template <operand A> requires operands<A>
constexpr auto exp(A a) { return apply<op::exp>(std::move(a)); }
template <operand A> requires operands<A>
constexpr auto log(A a) { return apply<op::log>(std::move(a)); }
template <operand A> requires operands<A>
constexpr auto log1p(A a) { return apply<op::log1p>(std::move(a)); }
template <operand A> requires operands<A>
constexpr auto expm1(A a) { return apply<op::expm1>(std::move(a)); }
template <operand A> requires operands<A>
constexpr auto sqrt(A a) { return apply<op::sqrt>(std::move(a)); }
template <operand A> requires operands<A>
constexpr auto rsqrt(A a) { return apply<op::rsqrt>(std::move(a)); }
template <operand A> requires operands<A>
constexpr auto sin(A a) { return apply<op::sin>(std::move(a)); }
template <operand A> requires operands<A>
constexpr auto cos(A a) { return apply<op::cos>(std::move(a)); }
template <operand A> requires operands<A>
constexpr auto tanh(A a) { return apply<op::tanh>(std::move(a)); }
template <operand A> requires operands<A>
constexpr auto erf(A a) { return apply<op::erf>(std::move(a)); }
template <operand A> requires operands<A>
constexpr auto abs(A a) { return apply<op::abs>(std::move(a)); }
template <operand A> requires operands<A>
constexpr auto sign(A a) { return apply<op::sign>(std::move(a)); }
template <operand A> requires operands<A>
constexpr auto floor(A a) { return apply<op::floor>(std::move(a)); }
template <operand A> requires operands<A>
constexpr auto round(A a) { return apply<op::round>(std::move(a)); }

/// `x` with elements of type `T`.
template <element T, expression X>
constexpr auto cast(X x) {
  return apply<op::cast, attr<static_cast<index_t>(dtype_of<T>)>>(std::move(x));
}

namespace detail {
/// `e` with elements of T, itself if it has them.
template <element T, expression E>
constexpr auto in_type(E e) {
  if constexpr (std::is_same_v<T, typename E::value_type>) return e;
  else return cast<T>(std::move(e));
}

/// f(x...), a formula over several ops; of bf16 and f16 operands it is computed in f32 and rounded once, as
/// one op is.
template <class F, expression... X>
constexpr auto rounded_once(F f, X... x) {
  constexpr dtype t = [] {
    const dtype types[] = {dtype_of<typename X::value_type>...};
    dtype all = types[0];
    for (dtype each : types) all = promoted(all, each);
    return all;
  }();
  if constexpr (is_narrow(t)) return cast<typename type_of<t>::type>(f(cast<float>(std::move(x))...));
  else return f(std::move(x)...);
}
}  // namespace detail

template <operand A, operand B> requires operands<A, B>
constexpr auto equal(A a, B b) { return apply<op::equal>(std::move(a), std::move(b)); }
template <operand A, operand B> requires operands<A, B>
constexpr auto less(A a, B b) { return apply<op::less>(std::move(a), std::move(b)); }
template <operand A, operand B> requires operands<A, B>
constexpr auto less_equal(A a, B b) { return apply<op::less_equal>(std::move(a), std::move(b)); }
template <operand A> requires operands<A>
constexpr auto logical_not(A a) { return apply<op::logical_not>(std::move(a)); }
template <operand A, operand B> requires operands<A, B>
constexpr auto logical_and(A a, B b) { return apply<op::logical_and>(std::move(a), std::move(b)); }
template <operand A, operand B> requires operands<A, B>
constexpr auto logical_or(A a, B b) { return apply<op::logical_or>(std::move(a), std::move(b)); }
template <operand C, operand A, operand B> requires operands<C, A, B>
constexpr auto where(C condition, A a, B b) {
  return apply<op::where>(std::move(condition), std::move(a), std::move(b));
}

/// Element by element, as the others: bool expressions. NaN is not equal to itself.
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

/// `x` between `low` and `high`; `high` where low > high. The cotangent passes where low <= x <= high.
template <operand X, operand L, operand H> requires operands<X, L, H>
constexpr auto clamp(X x, L low, H high) {
  return apply<op::clamp>(std::move(x), std::move(low), std::move(high));
}

}  // namespace weft
