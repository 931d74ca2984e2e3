// SPDX-License-Identifier: MIT
// Application of an op, spelt the same for expressions and for values of a graph under construction.
//
// The formulas of ops (`value`, `vjp`) are generic. Called with expressions they build a type; called with
// graph values, in the compiler, they append nodes. Numbers are converted to the element type of the tensor
// operand, as in PyTorch: a float with an integer tensor gives f32 (number_beside, base/dtype.hpp).
//
//   apply<op::add>(x, 1.0f)        // x + 1.0f
#pragma once

#include <string>

#include <weft/expr/expression.hpp>

namespace weft {

template <element T, class Extents, bool Tracked>
class tensor;

/// Base class of values of a graph under construction (graph/graph.hpp).
struct graph_value_base {};
/// A value of a graph under construction.
template <class T>
concept graph_value = std::derived_from<std::remove_cvref_t<T>, graph_value_base>;

/// What an op accepts as an operand: an expression, a graph value or a number.
template <class T>
concept operand = expression<T> || graph_value<T> || std::is_arithmetic_v<std::remove_cvref_t<T>> ||
                  element<std::remove_cvref_t<T>>;

/// Operands of one op: at least one of them is not a plain number.
template <class... Ts>
concept operands = (operand<Ts> && ...) && ((expression<Ts> || graph_value<Ts>) || ...);

namespace detail {

[[noreturn, gnu::cold]] inline void refuse_number(message_part number, dtype t) {
  refuse<value_error>({"weft: the number ", number, " is not a value of the tensor's type, ", name_of(t),
                       ": cast the tensor"});
}
/// `x` as a T. Throws value_error if an integer is out of range of T; PyTorch wraps it around, so that
/// u8 == -1 is true for 255.
template <element T, class Number>
constexpr T number_as(Number x) {
  if constexpr (std::is_integral_v<Number> && std::is_integral_v<T>) {
    const T y = static_cast<T>(x);
    if (static_cast<Number>(y) != x || (y < T{}) != (x < Number{}))
      refuse_number(x, dtype_of<T>);
    return y;
  } else if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<T>(x);
  } else {
    return static_cast<T>(static_cast<float>(x));
  }
}

template <class... A>
struct last_expression;
template <class First, class... Rest>
struct last_expression<First, Rest...> {
  using rest = typename last_expression<Rest...>::type;
  using type = std::conditional_t<std::is_void_v<rest> && expression<First>, First, rest>;
};
template <>
struct last_expression<> {
  using type = void;
};

template <class Tensor, class T>
constexpr auto as_expression(T x) {
  if constexpr (expression<T>) return as_written(std::move(x));
  else {
    using number = element_of<number_beside<T>(dtype_of<typename Tensor::value_type>)>;
    return scalar<number>(number_as<number>(x));
  }
}

template <graph_value V, class... Rest>
constexpr auto& graph_of(const V& first, const Rest&...) {
  return *first.owner;
}
template <class First, class... Rest>
constexpr auto& graph_of(const First&, const Rest&... rest) {
  return graph_of(rest...);
}
template <class... A>
struct first_graph_value {};  // no type: clang asks for it before it checks that there is one
template <class First, class... Rest>
struct first_graph_value<First, Rest...> : first_graph_value<Rest...> {};
template <graph_value First, class... Rest>
struct first_graph_value<First, Rest...> {
  using type = First;
};

/// The law of `Op` as a class template, which fails to compile when instantiated with operands that violate
/// the law. Aliases, so that compiler messages show no steps between the op and the error.
template <bool TypesFit>
struct law_kind {
  template <class Op, class Node, class... Operands>
  using of = typename Op::template law<Node::law.holds, extents_of<Operands>...>;
};
template <>
struct law_kind<false> {
  template <class Op, class Node, class... Operands>
  using of = typename Op::template type_law<false, typename Operands::value_type...>;
};
template <class Op, class Node, class... Operands>
using law_of = typename law_kind<Node::law.types_fit>::template of<Op, Node, Operands...>;

/// Takes the place of a node that violates a law, which is already an error: a leaf with the node's type and
/// shape, so that consequences of the violation are not reported as well.
template <class Node>
using not_computed = weft::tensor<typename Node::value_type, extents_of<Node>, true>;

template <class Tensor, class T>
using expression_for = decltype(as_expression<Tensor>(std::declval<T>()));

}  // namespace detail

/// Whether `Op` accepts operands of these number, types and shapes, by its laws. Attributes must be some that
/// the op can have; a dim that no operand has is a compile-time error.
template <class Op, class Attr, class... Operands>
concept accepts = (expression<Operands> && ...) && sizeof...(Operands) == std::size_t{Op::arity} &&
                  node<Op, Attr, std::remove_cvref_t<Operands>...>::law.holds &&
                  node<Op, Attr, std::remove_cvref_t<Operands>...>::law.types_fit;

/// Applies `Op` with attributes `Attr` to `a...`. Operands that violate its laws do not compile.
template <class Op, class Attr = attr<>, operand... A>
  requires(operands<A...> && !(graph_value<A> || ...))
constexpr auto apply(A... a) {
  using beside = typename detail::last_expression<A...>::type;
  static_assert(sizeof...(A) == std::size_t{Op::arity},
                "weft: apply: wrong number of operands: op::elementwise<N> says how many the op has");
  using result = node<Op, Attr, detail::expression_for<beside, A>...>;
  (void)sizeof(detail::law_of<Op, result, detail::expression_for<beside, A>...>);
  if constexpr (result::law.holds && result::law.types_fit)
    return result(detail::as_expression<beside>(std::move(a))...);
  else return detail::not_computed<result>();
}
/// The same in the formulas of derivatives. The return type is declared, because ops may be each other's
/// derivatives.
template <class Op, class Attr = attr<>, operand... A>
  requires(operands<A...> && (graph_value<A> || ...))
constexpr typename detail::first_graph_value<A...>::type apply(A... a) {
  return detail::graph_of(a...).template apply<Op>(Attr::value, a...);
}

namespace detail {
/// A node of `Op` whose dynamic attributes are given at run time in `sizes`.
template <class Op, class Attr, std::size_t Sizes, expression... X>
constexpr auto apply_sized(const index_t (&sizes)[Sizes], X... x) {
  using result = sized_node<Op, Attr, static_cast<int>(Sizes), X...>;
  (void)sizeof(law_of<Op, node<Op, Attr, X...>, X...>);
  return result(sizes, as_expression<void>(std::move(x))...);
}
}  // namespace detail

}  // namespace weft
