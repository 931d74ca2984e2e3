// SPDX-License-Identifier: MIT
// Conversion of an expression type to a graph.
//
// Leaves, numbers and sizes are numbered in the order of the walk; run/bind.hpp collects their values from an
// expression object in the same order.
//
//   constexpr int nodes = [] { compute_graph g; flatten<decltype(y)>(g); return g.size(); }();
#pragma once

#include <weft/expr/shared.hpp>
#include <weft/graph/build.hpp>

namespace weft::graph {

namespace detail {

using weft::detail::identity;
using scope = weft::detail::expression_scope<sequence>;

template <class E>
struct flattener;

template <class E>
constexpr value flatten_in(compute_graph& g, scope& s) {
  return flattener<E>::run(g, s);
}

template <expression E>
  requires E::is_leaf
struct flattener<E> {
  static constexpr value run(compute_graph& g, scope&) {
    if constexpr (requires { E::division::value; }) return g.leaf(spec_of<E>, E::role, E::division::value);
    else return g.leaf(spec_of<E>, E::role);
  }
};

template <class T>
struct flattener<scalar<T>> {
  static constexpr value run(compute_graph& g, scope&) { return g.argument(dtype_of<T>); }
};

template <class Tag, class T, class Extents>
struct flattener<bound<Tag, T, Extents>> {
  static constexpr value run(compute_graph& g, scope& s) {
    const int id = s.read(&identity<bound<Tag, T, Extents>>);
    if (id < 0) throw value_error("weft: let: a variable is used outside of its let");
    return {&g, id};
  }
};

template <class Tag, class Value, class Body>
struct flattener<let_node<Tag, Value, Body>> {
  using variable = typename let_node<Tag, Value, Body>::variable;
  static constexpr value run(compute_graph& g, scope& s) {
    const value v = flatten_in<Value>(g, s);
    s.bind(&identity<variable>, v.id);
    const value body = flatten_in<Body>(g, s);
    s.unbind();
    return body;
  }
};

/// The value of E, computed at the first occurrence of `node`, which later occurrences refer to.
template <class E>
constexpr value flatten_once(compute_graph& g, scope& s, const char* node) {
  if (const auto* known = s.find(node)) return {&g, known->id};
  const std::uint64_t before = s.begin();
  const value v = flatten_in<E>(g, s);
  s.end(node, v.id, nullptr, before);
  return v;
}
template <class Tag, class E>
struct flattener<shared_node<Tag, E>> {
  static constexpr value run(compute_graph& g, scope& s) {
    return flatten_once<E>(g, s, &identity<shared_node<Tag, E>>);
  }
};
template <class Tag, class Leaf>
struct flattener<one_operand<Tag, Leaf>> {
  static constexpr value run(compute_graph& g, scope& s) {
    return flatten_once<Leaf>(g, s, &identity<one_operand<Tag, Leaf>>);
  }
};

template <class... E>
struct flattener<bundle<E...>> {
  static constexpr value run(compute_graph& g, scope& s) {
    const value v[] = {flatten_in<E>(g, s)...};
    for (const value& each : v) g.outputs.push_back(each.id);
    return v[0];
  }
};

/// The attributes, with a symbol for each size that is given at run time.
template <int Sizes>
constexpr attributes with_sizes(compute_graph& g, attributes at) {
  int left = Sizes;
  for (int i = 0; i < at.count && left > 0; ++i)
    if (at[i] == dyn) {
      at[i] = g.dims.given(g.sizes++);
      --left;
    }
  return at;
}

template <class Op, int Sizes, class Attr, class... Operands>
constexpr value flatten_node(compute_graph& g, scope& s) {
  const value v[] = {flatten_in<Operands>(g, s)...};
  return [&]<int... I>(std::integer_sequence<int, I...>) {
    return g.apply<Op>(with_sizes<Sizes>(g, Attr::value), v[I]...);
  }(std::make_integer_sequence<int, sizeof...(Operands)>{});
}

template <class Op, class Attr, class... Operands>
struct flattener<weft::node<Op, Attr, Operands...>> {
  static constexpr value run(compute_graph& g, scope& s) {
    return flatten_node<Op, 0, Attr, Operands...>(g, s);
  }
};

template <class Op, class Attr, int Sizes, class... Operands>
struct flattener<sized_node<Op, Attr, Sizes, Operands...>> {
  static constexpr value run(compute_graph& g, scope& s) {
    return flatten_node<Op, Sizes, Attr, Operands...>(g, s);
  }
};

}  // namespace detail

/// Appends the expression `E` to `g` and returns its value.
template <expression E>
constexpr value flatten(compute_graph& g) {
  (void)sizeof(written_out_law<can_be_compiled<E>(most_operands)>);
  detail::scope s;
  return detail::flatten_in<E>(g, s);
}

}  // namespace weft::graph
