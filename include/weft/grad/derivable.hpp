// SPDX-License-Identifier: MIT
// Whether an expression is differentiable, as determined by its type, so that an op without a derivative is a
// compile-time error with a message.
#pragma once

#include <weft/grad/derivative.hpp>

namespace weft::autodiff {

/// The compile-time error for `Op`, which has no derivative.
template <bool Holds, class Op>
struct derivative_law {
  static_assert(Holds,
                "weft: backward: this op has no derivative and stands between a tracked operand and the "
                "result: give it a vjp, or use detach");
};

/// Whether gradients flow to a leaf of `E`; requires every op on their path to be differentiable. `Tracked`:
/// the variables of enclosing lets and gradients that stand for values to which gradients flow.
template <class E, class... Tracked>
inline constexpr bool flows = false;
template <expression E, class... Tracked>
  requires E::is_leaf
inline constexpr bool flows<E, Tracked...> =
    E::requires_grad && is_floating(dtype_of<typename E::value_type>);
template <class Tag, class T, class Extents, class... Tracked>
inline constexpr bool flows<bound<Tag, T, Extents>, Tracked...> =
    (false || ... || std::is_same_v<bound<Tag, T, Extents>, Tracked>);
template <class Op, class Attr, class... A, class... Tracked>
inline constexpr bool flows<node<Op, Attr, A...>, Tracked...> = [] {
  constexpr bool tracked = (false || ... || flows<A, Tracked...>) &&
                           is_floating(dtype_of<typename node<Op, Attr, A...>::value_type>);
  constexpr bool derivable = graph::detail::has_vjp<Op> || graph::detail::has_value<Op>;
  (void)sizeof(derivative_law < !tracked || derivable, Op >);
  return tracked;
}();
template <class Attr, class A, class... Tracked>
inline constexpr bool flows<node<op::detach, Attr, A>, Tracked...> = false;
template <class Op, class Attr, int Sizes, class... A, class... Tracked>
inline constexpr bool flows<sized_node<Op, Attr, Sizes, A...>, Tracked...> =
    flows<node<Op, Attr, A...>, Tracked...>;
template <class Tag, class Value, class Body, class... Tracked>
inline constexpr bool flows<let_node<Tag, Value, Body>, Tracked...> = [] {
  if constexpr (flows<Value, Tracked...>)
    return flows<Body, typename let_node<Tag, Value, Body>::variable, Tracked...>;
  else return flows<Body, Tracked...>;
}();
template <class Tag, class E, class... Tracked>
inline constexpr bool flows<shared_node<Tag, E>, Tracked...> = flows<E, Tracked...>;
/// The function of a gradient is differentiated even if no gradient flows to its point.
template <class Tag, class Point, class Body, class... Tracked>
inline constexpr bool flows<gradient_node<Tag, Point, Body>, Tracked...> = [] {
  using variable = typename gradient_node<Tag, Point, Body>::variable;
  return flows<Body, variable, Tracked...> && (flows<Point, Tracked...> || flows<Body, Tracked...>);
}();

}  // namespace weft::autodiff
