// SPDX-License-Identifier: MIT
// The law of derivatives over the list of ops: the first and second derivatives of every element-wise op
// agree with difference quotients of its definition. A new op is tested here as soon as it is in the list.
#pragma once

#include <doctest/doctest.h>

#include "../gradients.hpp"

using namespace weft;
using test::derivable;
using test::points;
using test::twice_derivable;
using test::vector;
using test::weighed;

namespace {

template <class Op>
concept has_domain = requires { Op::domain; };

/// Element-wise ops that take numbers and depend only on them; all of these are tested.
template <class Op>
constexpr bool is_tested() {
  constexpr bool special = std::is_same_v<Op, op::cast> || std::is_same_v<Op, op::contiguous> ||
                           std::is_same_v<Op, op::dropout> || std::is_same_v<Op, op::bernoulli>;
  constexpr bool logic = std::is_base_of_v<op::comparison, Op> || std::is_base_of_v<op::logical<1>, Op> ||
                         std::is_base_of_v<op::logical<2>, Op>;
  if constexpr (special || logic || Op::arity < 1 || Op::arity > 2) return false;
  else return Op::kind == op::op_kind::elementwise || std::is_base_of_v<op::elementwise<Op::arity>, Op>;
}

template <class Op>
vector sampled(double from_low, double from_high) {
  double low = -2, high = 2;
  if constexpr (has_domain<Op>) low = Op::domain.low, high = Op::domain.high;
  return points(low + from_low, high - from_high);
}

template <class Op>
void check_op() {
  if constexpr (is_tested<Op>()) {
    CAPTURE(std::string(Op::name));
    auto a = sampled<Op>(0, 0), b = sampled<Op>(0.2, 0);  // not near a: maximum has a kink there
    if constexpr (Op::arity == 1) {
      // sign and round return no gradient, which by itself is an error.
      CHECK(derivable(weighed(apply<Op>(a)) + sum(a) * 0.0, a));
      CHECK(twice_derivable([](auto v) { return weighed(apply<Op>(v)); }, a, b, a));
    } else {
      CHECK(derivable(weighed(apply<Op>(a, b)), a));
      CHECK(derivable(weighed(apply<Op>(a, b)), b));
      const auto along = points(-1, 2);
      CHECK(twice_derivable([&](auto v) { return weighed(apply<Op>(v, b)); }, a, along, a));
      CHECK(twice_derivable([&](auto v) { return weighed(apply<Op>(v, b)); }, a, along, b));
    }
  }
}
/// Checks the library's ops number Begin, Begin + 2, ...
template <int Begin, int... I>
void check_ops(std::integer_sequence<int, I...>) {
  (check_op<typename op::op_at<Begin + 2 * I, op::all::list>::type>(), ...);
}
template <int Begin>
void check_ops() {
  check_ops<Begin>(std::make_integer_sequence<int, (op::all::list::size - Begin + 1) / 2>{});
}

}  // namespace
