// SPDX-License-Identifier: MIT
// Inverse trigonometric functions, as formulas of the arc tangent.
//
//   auto phi = atan2(y, x);      // in [-pi, pi]
#pragma once

#include <array>

#include <weft/op/functions.hpp>
#include <weft/op/rule.hpp>

namespace weft::op {

/// Arc sine.
struct asin : elementwise<1> {
  static constexpr auto name = "asin";
  static constexpr interval domain{-0.9, 0.9};
  static constexpr auto value(auto x) { return weft::atan(x / weft::sqrt((1 - x) * (1 + x))); }
  static constexpr auto vjp(auto g, auto, auto x) { return g * weft::rsqrt((1 - x) * (1 + x)); }
};

/// Arc cosine.
struct acos : elementwise<1> {
  static constexpr auto name = "acos";
  static constexpr interval domain{-0.9, 0.9};
  static constexpr auto value(auto x) { return 2 * weft::atan(weft::sqrt((1 - x) / (1 + x))); }
  static constexpr auto vjp(auto g, auto, auto x) { return -(g * weft::rsqrt((1 - x) * (1 + x))); }
};

/// The angle between the first axis and the point (operand 1, operand 0).
struct atan2 : elementwise<2> {
  static constexpr auto name = "atan2";
  static constexpr auto value(auto y, auto x) {
    const auto a = weft::abs(y), b = weft::abs(x), low = weft::minimum(a, b), high = weft::maximum(a, b);
    const auto tangent =  // at most 1; 0 for two zeros, 1 for two infinities
        weft::where(weft::equal(low, high), weft::where(weft::equal(high, 0), 0, 1), low / high);
    const auto within = weft::atan(tangent);
    const auto right = weft::where(weft::less(b, a), 1.57079632679489661923 - within, within);
    const auto above = weft::where(is_negative(x), 3.14159265358979323846 - right, right);
    return weft::where(is_negative(y), -above, above);
  }
  static constexpr auto vjp(auto g, auto, auto y, auto x) {
    const auto square = x * x + y * y;
    const auto scaled = weft::where(weft::equal(square, 0), 0, g / square);
    return std::array{scaled * x, -(scaled * y)};
  }

 private:
  /// True for -0 as well.
  static constexpr auto is_negative(auto v) {
    return weft::logical_or(weft::less(v, 0), weft::less(1 / v, 0));
  }
};

}  // namespace weft::op

namespace weft {

/// Arc sine, in [-pi / 2, pi / 2]; NaN outside of [-1, 1]. Integers and bool become f32.
template <operand X>
  requires operands<X>
constexpr auto asin(X x) {
  return apply<op::asin>(std::move(x));
}
/// Arc cosine, in [0, pi]; NaN outside of [-1, 1]. Integers and bool become f32.
template <operand X>
  requires operands<X>
constexpr auto acos(X x) {
  return apply<op::acos>(std::move(x));
}
/// The angle in [-pi, pi] between the first axis and the point (x, y), as std::atan2: correct in all
/// quadrants, for zeros of both signs and for infinities. Broadcasts. The derivative at (0, 0) is 0, as in
/// PyTorch. Integers and bool become f32.
template <operand Y, operand X>
  requires operands<Y, X>
constexpr auto atan2(Y y, X x) {
  return apply<op::atan2>(std::move(y), std::move(x));
}

}  // namespace weft
