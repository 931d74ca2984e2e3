// SPDX-License-Identifier: MIT
// Division with remainder, of integers exactly.
//
//   auto row = floor_divide(index, 7), column = index % 7;      // of i64, i32 or u8
#pragma once

#include <weft/op/functions.hpp>
#include <weft/op/rule.hpp>

namespace weft::op {

/// Base of formulas of a dividend and a divisor, with a result of their promoted type.
struct division : on_numbers<composed<2>> {
 protected:
  /// The largest integer q with q * d <= n, of i64; 0 where d is 0. Quotients of doubles are near enough that
  /// the second is off by one at most.
  static constexpr auto quotient(auto n, auto d) {
    const auto near = [&](auto of) {
      return cast_to(weft::floor(cast_to(of, dtype::f64) / cast_to(d, dtype::f64)), dtype::i64);
    };
    const auto first = near(n), q = first + near(n - first * d), rest = n - q * d;
    const auto below = weft::where(weft::less(0, d), weft::less(rest, 0), weft::less(0, rest));
    const auto beyond = weft::where(weft::less(0, d), weft::less_equal(d, rest), weft::less_equal(rest, d));
    return weft::where(weft::equal(d, 0), 0, q + weft::where(below, -1, weft::where(beyond, 1, 0)));
  }
};

/// The largest integer that is not above a / b.
struct floor_divide : division {
  static constexpr auto name = "floor_divide";
  static constexpr auto value(const attributes&, auto a, auto b) {
    const dtype t = promoted(a.type(), b.type());
    if (is_floating(t)) return weft::floor(a / b);
    return cast_to(quotient(cast_to(a, dtype::i64), cast_to(b, dtype::i64)), t);
  }
};

/// a - floor(a / b) * b.
struct remainder : division {
  static constexpr auto name = "remainder";
  static constexpr auto value(const attributes&, auto a, auto b) {
    const dtype t = promoted(a.type(), b.type());
    if (is_floating(t)) return a - weft::floor(a / b) * b;
    const auto n = cast_to(a, dtype::i64), d = cast_to(b, dtype::i64);
    return cast_to(n - quotient(n, d) * d, t);
  }
};

}  // namespace weft::op

namespace weft {

/// The largest integer that is not above a / b, per element, in the promoted type: torch.floor_divide. Exact
/// for integers, where a / 0 is 0 instead of an error; of floating operands floor(a / b). Broadcasts. Not
/// defined for bool; no derivative.
template <operand A, operand B>
  requires operands<A, B>
constexpr auto floor_divide(A a, B b) {
  return apply<op::floor_divide>(std::move(a), std::move(b));
}
/// a - floor_divide(a, b) * b, which has the sign of b: torch.remainder, Python's %. Exact for integers,
/// where remainder(a, 0) is a; of floating operands, the quotient and the product are rounded. Broadcasts.
/// Not defined for bool.
template <operand A, operand B>
  requires operands<A, B>
constexpr auto remainder(A a, B b) {
  return apply<op::remainder>(std::move(a), std::move(b));
}
/// remainder(a, b), also of negative integers: -1 % 3 is 2.
template <operand A, operand B>
  requires operands<A, B>
constexpr auto operator%(A a, B b) {
  return remainder(std::move(a), std::move(b));
}

}  // namespace weft
