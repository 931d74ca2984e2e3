// SPDX-License-Identifier: MIT
// Derivatives as expressions, of any order.
//
//   auto slope = grad([](auto x) { return sum(exp(x) * x); }, x);      // an expression like x
//   auto curved = hvp(f, x, v);                                        // second derivative times v
//
// The derivative is taken while the graph is built, so that the result is fused, can be evaluated on a tape,
// and can be differentiated again.
#pragma once

#include <weft/grad/reverse.hpp>
#include <weft/graph/flatten.hpp>
#include <weft/op/all.hpp>

namespace weft {

namespace detail {
/// The number of a call, for a gradient whose function draws random numbers: copies have the same draws.
template <bool Draws>
struct gradient_call {
  index_t call = next_call();
};
template <>
struct gradient_call<false> {};
}  // namespace detail

/// The derivative of the scalar `body` with respect to its variable, at `point`.
template <class Tag, expression Point, expression Body>
struct gradient_node : expression_base, detail::gradient_call<detail::has_draws<Body>> {
  using value_type = typename Point::value_type;
  using variable = bound<Tag, value_type, extents_of<Point>>;
  static constexpr shape static_shape = Point::static_shape;
  static constexpr long node_count = detail::sum_of_counts({Point::node_count, Body::node_count});

  Point point;
  Body body;
  constexpr auto operator[](index_t i) const { return select<0>(*this, i); }
};

namespace detail {
template <class Tag, class Point, class Body>
struct parts<gradient_node<Tag, Point, Body>> {
  using type = expression_list<Point, Body>;
};
template <class Tag, class Point, class Body>
inline constexpr unsigned own_part<gradient_node<Tag, Point, Body>> = has_draws<Body> ? draws_part : 0;
template <class Tag, class Point, class Body>
inline constexpr unsigned seen_parts<gradient_node<Tag, Point, Body>> = shared_part | draws_part;
}  // namespace detail

/// The compile-time error for the gradient of a function that does not return a scalar.
template <bool Holds, class Extents>
struct gradient_law {
  static_assert(Holds, "weft: grad: the function must return a scalar: take the sum or mean of its result");
};

/// The compile-time error for a gradient that no number of this type can approximate.
template <bool Holds, class T>
struct floating_law {
  static_assert(Holds, "weft: grad: the argument and the result of the function must be floating");
};

/// The compile-time error for the gradient of an expression that is not a single program.
template <bool Holds>
struct one_program_law {
  static_assert(Holds,
                "weft: grad: a repeat, experts, a recurrent layer, batch norm, linear_cross_entropy or a "
                "list is evaluated as several programs: use a tape, steps.backward(loss), then x.grad()");
};

/// The gradient of the scalar f(x) with respect to x, as an expression with the shape and dtype of x; zero if
/// f does not depend on x. Costs a small multiple of f. Can be nested for higher derivatives. jax.grad.
template <class F, expression X>
constexpr auto grad(F f, X x) {
  using variable = bound<F, typename X::value_type, extents_of<X>>;
  using body = decltype(f(variable{}));
  static_assert(expression<body>, "weft: grad: the function must return an expression");
  if constexpr (expression<body>) {
    constexpr bool is_scalar = body::static_shape.order == 0;
    (void)sizeof(gradient_law<is_scalar, extents_of<body>>);
    (void)sizeof(floating_law<is_floating(spec_of<X>.type), typename X::value_type>);
    (void)sizeof(floating_law<is_floating(spec_of<body>.type), typename body::value_type>);
    constexpr unsigned parts = detail::parts_of<body> | detail::parts_of<X>;
    constexpr bool is_one_program = !(parts & detail::boundary_part);
    (void)sizeof(one_program_law<is_one_program>);
    return gradient_node<F, X, body>{{}, {}, detail::as_written(std::move(x)), f(variable{})};
  }
}

/// Compile-time errors: the gradient is with respect to the function's only argument.
template <class F, expression X, expression Y, expression... Rest>
constexpr void grad(F, X, Y, Rest...) {
  static_assert(detail::unsupported<F>,
                "weft: grad: one argument at a time: grad([&](auto x) { return f(x, y); }, x); for all at "
                "once, use a tape: steps.backward(loss), then x.grad(), y.grad()");
}
template <expression E, expression X>
constexpr void grad(E, X) {
  static_assert(detail::unsupported<E>,
                "weft: grad: the first argument must be a function of the second: grad([](auto x) { return "
                "sum(x * x); }, x)");
}

/// Vector-Jacobian product v^T (df/dx), with the shape of x; f(x) and v must have the same shape;
/// otherwise it does not compile, or throws shape_error at evaluation. Likewise below.
template <class F, expression X, expression V>
constexpr auto vjp(F f, X x, V v) {
  return grad([f, v](auto at) { return sum(apply<op::product_of<"vjp">>(f(at), v)); }, std::move(x));
}

/// Hessian-vector product of the scalar f at x with v, with the shape of x; the Hessian is not formed.
template <class F, expression X, expression V>
constexpr auto hvp(F f, X x, V v) {
  return grad([f, v](auto at) { return sum(apply<op::product_of<"hvp">>(grad(f, at), v)); }, std::move(x));
}

/// Jacobian-vector product (df/dx) v, with the shape of f(x), for v with the shape of x. Computed as the
/// derivative of the vector-Jacobian product, which is linear in its cotangent u, with respect to u.
template <class F, expression X, expression V>
constexpr auto jvp(F f, X x, V v) {
  const auto of_cotangent = [f, x, v](auto u) {
    const auto slope = [f, u](auto at) { return sum(f(at) * u); };
    return sum(apply<op::product_of<"jvp">>(grad(slope, x), v));
  };
  return grad(of_cotangent, f(x) * 0.0f);
}

namespace graph::detail {
template <class Tag, class Point, class Body>
struct flattener<gradient_node<Tag, Point, Body>> {
  using variable = typename gradient_node<Tag, Point, Body>::variable;
  static constexpr value run(compute_graph& g, scope& s) {
    const value point = flatten_in<Point>(g, s);
    node tracked;  // not interned: each gradient has its own
    tracked.op = &info_of<op::differentiated_at>;
    tracked.result = point.get().result;
    tracked.operand[0] = point.id;
    tracked.operands = 1;
    tracked.needs_gradient = true;
    const value x = g.append(tracked);
    s.bind(&identity<variable>, x.id);
    const value y = flatten_in<Body>(g, s);
    s.unbind();
    const value one = g.constant(1, y.type());
    // The list depends on a template argument, so that clang does not compile all derivatives for programs
    // that use none.
    using ops = std::conditional_t<expression<Body>, op::all::list, void>;
    const sequence<int> cotangents = autodiff::reverse<ops>(g, y.id, one.id, x.id);
    const int cotangent = cotangents[x.id];
    return cotangent >= 0 ? value(&g, cotangent) : expand_to(g.constant(0, x.type()), x.extents());
  }
};
}  // namespace graph::detail

}  // namespace weft
