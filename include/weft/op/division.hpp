// SPDX-License-Identifier: MIT
// Division with remainder, exact for integers.
//
//   auto row = floor_divide(index, 7), column = index % 7;      // of i64, i32 or u8
#pragma once

#include <weft/op/functions.hpp>
#include <weft/op/rule.hpp>

namespace weft::op {

/// Base of formulas of a dividend and a divisor whose result has their promoted type.
struct division : on_numbers<composed<2>> {
 protected:
  /// The largest integer q with q * d <= n, as i64; 0 where d is 0. Quotients of doubles are accurate enough
  /// that the second one is off by at most one.
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

/// The largest integer not above a / b.
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

/// The largest integer not above a / b, per element, in the promoted type: torch.floor_divide. Exact for
/// integers, for which a / 0 is 0 and not an error; floor(a / b) for floating operands. Broadcasts. Not
/// defined for bool; no derivative.
template <operand A, operand B>
  requires operands<A, B>
constexpr auto floor_divide(A a, B b) {
  return apply<op::floor_divide>(std::move(a), std::move(b));
}
/// a - floor_divide(a, b) * b, which has the sign of b: torch.remainder, Python's %. Exact for integers, for
/// which remainder(a, 0) is a; for floating operands, the quotient and the product are rounded. Broadcasts.
/// Not defined for bool.
template <operand A, operand B>
  requires operands<A, B>
constexpr auto remainder(A a, B b) {
  return apply<op::remainder>(std::move(a), std::move(b));
}
/// remainder(a, b), for negative integers too: -1 % 3 is 2.
template <operand A, operand B>
  requires operands<A, B>
constexpr auto operator%(A a, B b) {
  return remainder(std::move(a), std::move(b));
}

}  // namespace weft
