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

/// Whether gradients flow to a leaf of `E`; requires every op on their path to be differentiable. Variables
/// of a let count as not tracked, since their values are checked where they are bound.
template <class E>
inline constexpr bool flows = false;
template <expression E>
  requires E::is_leaf
inline constexpr bool flows<E> = E::requires_grad && is_floating(dtype_of<typename E::value_type>);
  template <class Op, class Attr, class... A>
  inline constexpr bool flows<node<Op, Attr, A...>> = [] {
    constexpr bool tracked =
        (false || ... || flows<A>)&&is_floating(dtype_of<typename node<Op, Attr, A...>::value_type>);
    constexpr bool derivable = graph::detail::has_vjp<Op> || graph::detail::has_value<Op>;
    (void)sizeof(derivative_law < !tracked || derivable, Op >);
    return tracked;
  }();
  template <class Attr, class A>
  inline constexpr bool flows<node<op::detach, Attr, A>> = false;
  template <class Op, class Attr, int Sizes, class... A>
  inline constexpr bool flows<sized_node<Op, Attr, Sizes, A...>> = flows<node<Op, Attr, A...>>;
  template <class Tag, class Value, class Body>
  inline constexpr bool flows<let_node<Tag, Value, Body>> = flows<Value> | flows<Body>;
  template <class Tag, class E>
  inline constexpr bool flows<shared_node<Tag, E>> = flows<E>;
  template <class Tag, class Point, class Body>
  inline constexpr bool flows<gradient_node<Tag, Point, Body>> = flows<Point> | flows<Body>;

}  // namespace weft::autodiff
