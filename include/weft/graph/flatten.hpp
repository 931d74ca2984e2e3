// SPDX-License-Identifier: MIT
// From an expression's type to a graph: the one walk over types.
//
// Leaves, numbers and sizes are numbered in the order of the walk; run/bind.hpp collects their
// values from an expression object in the same order.
//
//   constexpr int nodes = [] { graph g; flatten<decltype(y)>(g); return g.size(); }();
#pragma once

#include <weft/expr/expression.hpp>
#include <weft/graph/build.hpp>

namespace weft::graph {

namespace detail {

/// One address per type.
template <class T>
inline constexpr char identity = 0;

/// Variables of the enclosing lets.
struct scope {
  struct entry {
    const char* variable;
    int id;
  };
  sequence<entry> entries;
};

template <class E>
struct flattener;

template <class E>
constexpr value flatten_in(compute_graph& g, scope& s) {
  return flattener<E>::run(g, s);
}

template <expression E>
  requires E::is_leaf
struct flattener<E> {
  static constexpr value run(compute_graph& g, scope&) { return g.leaf(form_of<E>, E::requires_grad); }
};

template <class T>
struct flattener<scalar<T>> {
  static constexpr value run(compute_graph& g, scope&) { return g.argument(dtype_of<T>); }
};

template <class Tag, class T, class Extents>
struct flattener<bound<Tag, T, Extents>> {
  static constexpr value run(compute_graph& g, scope& s) {
    for (int i = s.entries.size(); i-- > 0;)
      if (same_object(s.entries[i].variable, &identity<bound<Tag, T, Extents>>))
        return {&g, s.entries[i].id};
    throw value_error("weft: let: a variable is used outside of its let");
  }
};

template <class Tag, class Value, class Body>
struct flattener<let_node<Tag, Value, Body>> {
  using variable = bound<Tag, typename Value::value_type, extents_of<Value>>;
  static constexpr value run(compute_graph& g, scope& s) {
    const value v = flatten_in<Value>(g, s);
    s.entries.push_back({&identity<variable>, v.id});
    const value body = flatten_in<Body>(g, s);
    s.entries.pop_back();
    return body;
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

/// Attributes with each size given at run time as a symbol.
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
  if constexpr (std::is_same_v<Op, op::uniform_like>) return random_like(v[0]);
  else return [&]<int... I>(std::integer_sequence<int, I...>) {
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

/// Appends the expression `E` to `g` and gives its value.
template <expression E>
constexpr value flatten(compute_graph& g) {
  static_assert(E::node_count < 20'000,
                "weft: this expression is written out more than 20,000 times over: share repeated "
                "operands with let(x, f)");
  detail::scope s;
  return detail::flatten_in<E>(g, s);
}

}  // namespace weft::graph
