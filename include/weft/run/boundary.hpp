// SPDX-License-Identifier: MIT
// Boundaries inside expressions: where one program ends and others are played.
//
// Before an expression with a boundary is evaluated, everything below the boundary is, and a leaf
// takes its place. What is left is an ordinary expression.
#pragma once

#include <vector>

#include <weft/tensor/tensor.hpp>

namespace weft {

/// `blocks` applied to `operand` one after the other; each must keep the form of its operand.
template <class Block, expression X>
struct boundary_node : expression_base {
  using value_type = typename X::value_type;
  static constexpr shape static_shape = X::static_shape;
  static constexpr long node_count = X::node_count;

  X operand;
  const std::vector<Block>* blocks;
};

/// The sum of f(rows of operand, labels of these rows), `rows` of them at a time: what f computes in between never exists at once.
template <class F, expression X, expression Labels>
struct slices_node : expression_base {
  using value_type = typename X::value_type;
  static constexpr shape static_shape{};
  static constexpr long node_count = X::node_count;

  X operand;  // [rows, ...]
  Labels labels;
  F f;
  index_t rows;
};

namespace run {

namespace detail {

template <class E>
inline constexpr bool has_boundary = false;
template <class F, class X, class Labels>
inline constexpr bool has_boundary<slices_node<F, X, Labels>> = true;
template <class Block, class X>
inline constexpr bool has_boundary<boundary_node<Block, X>> = true;
template <class Op, class Attr, class... A>
inline constexpr bool has_boundary<node<Op, Attr, A...>> = (has_boundary<A> || ...);
template <class Op, class Attr, int Sizes, class... A>
inline constexpr bool has_boundary<sized_node<Op, Attr, Sizes, A...>> = (has_boundary<A> || ...);
template <class Tag, class Value, class Body>
inline constexpr bool has_boundary<let_node<Tag, Value, Body>> =
    has_boundary<Value> || has_boundary<Body>;

/// The variables of lets whose values have become leaves.
struct no_variables {};
template <class Tag, class Leaf, class Outer>
struct variables {
  Leaf leaf;
  const Outer& outer;
};

template <class Tag, class T, class Extents>
auto look_up(const bound<Tag, T, Extents>& b, const no_variables&) {
  return b;
}
template <class Tag, class T, class Extents, class Found, class Leaf, class Outer>
auto look_up(const bound<Tag, T, Extents>& b, const variables<Found, Leaf, Outer>& v) {
  if constexpr (std::is_same_v<bound<Tag, T, Extents>, Found>) return v.leaf;
  else return look_up(b, v.outer);
}

template <class Evaluator, class Variables, class E>
auto resolve(Evaluator& evaluator, const Variables& v, const E& e);

template <class Evaluator, class Variables, class Op, class Attr, class... A>
auto resolve_node(Evaluator& evaluator, const Variables& v, const node<Op, Attr, A...>& n) {
  return std::apply(
      [&](const auto&... a) {
        return node<Op, Attr, decltype(resolve(evaluator, v, a))...>{resolve(evaluator, v, a)...};
      },
      n.operands);
}

template <class Evaluator, class Variables, class Op, class Attr, int Sizes, class... A>
auto resolve_node(Evaluator& evaluator, const Variables& v, const sized_node<Op, Attr, Sizes, A...>& n) {
  return std::apply(
      [&](const auto&... a) {
        return sized_node<Op, Attr, Sizes, decltype(resolve(evaluator, v, a))...>(
            n.sizes, resolve(evaluator, v, a)...);
      },
      n.operands);
}

template <class Evaluator, class Variables, class Block, class X>
auto resolve_node(Evaluator& evaluator, const Variables& v, const boundary_node<Block, X>& n) {
  auto x = evaluator.eval_program(resolve(evaluator, v, n.operand));
  for (const Block& block : *n.blocks) {
    using result = decltype(evaluator.eval_program(block(x)));
    static_assert(std::is_same_v<typename result::extents_type, typename decltype(x)::extents_type> ||
                      result::static_shape.order == X::static_shape.order,
                  "weft: repeat: a block must keep the form of its operand");
    x = decltype(x)(evaluator.eval_program(block(x)));
  }
  return x;
}

/// `e` as a leaf: itself, or its value.
template <class Evaluator, class E>
auto as_leaf(Evaluator& evaluator, const E& e) {
  if constexpr (requires { E::is_leaf; }) return e;
  else return evaluator.eval_program(e);
}

template <class Evaluator, class Variables, class F, class X, class Labels>
auto resolve_node(Evaluator& evaluator, const Variables& v, const slices_node<F, X, Labels>& n) {
  return evaluator.sum_of_slices(as_leaf(evaluator, resolve(evaluator, v, n.operand)),
                                 as_leaf(evaluator, resolve(evaluator, v, n.labels)), n.rows, n.f);
}

template <class Evaluator, class Variables, class Tag, class Value, class Body>
auto resolve_node(Evaluator& evaluator, const Variables& v, const let_node<Tag, Value, Body>& l) {
  auto value = resolve(evaluator, v, l.value);
  if constexpr (has_boundary<Body>) {
    auto leaf = as_leaf(evaluator, value);
    using variable = bound<Tag, typename Value::value_type, extents_of<Value>>;
    return resolve(evaluator, variables<variable, decltype(leaf), Variables>{leaf, v}, l.body);
  } else {
    auto body = resolve(evaluator, v, l.body);
    return let_node<Tag, decltype(value), decltype(body)>{{}, std::move(value), std::move(body)};
  }
}

template <class Evaluator, class Variables, class E>
auto resolve(Evaluator& evaluator, const Variables& v, const E& e) {
  if constexpr (weft::detail::is_bound<E>) return look_up(e, v);
  else if constexpr (requires { E::is_leaf; } || E::static_shape.order < 0) return e;
  else if constexpr (!has_boundary<E> && std::is_same_v<Variables, no_variables>) return e;
  else if constexpr (requires { resolve_node(evaluator, v, e); }) return resolve_node(evaluator, v, e);
  else return e;  // numbers
}

}  // namespace detail

/// `e` without boundaries: evaluator.eval_program computes what lies below them.
template <class Evaluator, expression E>
auto without_boundaries(Evaluator& evaluator, const E& e) {
  return detail::resolve(evaluator, detail::no_variables{}, e);
}

}  // namespace run
}  // namespace weft
