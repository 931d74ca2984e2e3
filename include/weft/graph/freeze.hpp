// SPDX-License-Identifier: MIT
// Freezing: a graph computed in one constant evaluation is stored for the next one.
//
// Compilers bound the work of one constant evaluation (clang: a million steps), and memory allocated in an
// evaluation must not outlive it. So a long computation is divided into stages, and between stages a graph is
// stored in tables of exact size.
//
//   static constexpr auto joint = freeze_graph<source>();      // source::make() gives a graph
//   ... joint.thaw() ...
#pragma once

#include <span>

#include <weft/graph/rewrite.hpp>

namespace weft {

/// A constant array of exact size, which may be empty.
template <class T, int N>
struct fixed_table {
  T data[std::size_t{N > 0 ? N : 1}]{};

  constexpr std::span<const T> view() const { return {data, static_cast<std::size_t>(N)}; }
  constexpr int size() const { return N; }
  constexpr const T& operator[](int i) const { return data[i]; }
  constexpr sequence<T> to_sequence() const {
    sequence<T> s;
    for (int i = 0; i < N; ++i) s.push_back(data[i]);
    return s;
  }
};

/// A table of N elements that begins with the elements of `list`, up to N of them.
template <int N, template <class, auto...> class List, class T, auto... Size>
constexpr fixed_table<T, N> first_of(const List<T, Size...>& list) {
  fixed_table<T, N> table;
  for (int i = 0; i < N && i < list.size(); ++i) table.data[i] = list[i];
  return table;
}

}  // namespace weft

namespace weft::graph {

/// Sizes of the tables of a frozen graph.
struct graph_sizes {
  int nodes, outputs, symbols, checks, laws;

  constexpr bool fit_into(const graph_sizes& room) const {
    return nodes <= room.nodes && outputs <= room.outputs && symbols <= room.symbols &&
           checks <= room.checks && laws <= room.laws;
  }
};

/// A graph in tables of exact size, as a constant; thaw() returns it as a graph.
template <graph_sizes S>
struct frozen_graph {
  fixed_table<node, S.nodes> nodes;
  fixed_table<int, S.outputs> outputs;
  fixed_table<symbol, S.symbols> symbols;
  fixed_table<index_t, S.symbols> same_as;
  fixed_table<extent_check, S.checks> checks;
  fixed_table<applied_law, S.laws> laws;
  int leaves = 0, arguments = 0, sizes = 0;

  constexpr compute_graph thaw() const {
    compute_graph g;
    g.nodes = nodes.to_sequence();
    g.outputs = outputs.to_sequence();
    g.dims.symbols = symbols.to_sequence();
    g.dims.same_as = same_as.to_sequence();
    g.dims.checks = checks.to_sequence();
    g.dims.laws = laws.to_sequence();
    g.leaves = leaves;
    g.arguments = arguments;
    g.sizes = sizes;
    return g;
  }
};

/// The sizes of the tables that `g` needs.
constexpr graph_sizes sizes_of(const compute_graph& g) {
  return {g.nodes.size(), g.outputs.size(), g.dims.symbols.size(), g.dims.checks.size(), g.dims.laws.size()};
}

namespace detail {

/// Most graphs fit these sizes and are computed once; a larger graph is computed again with its own sizes.
inline constexpr graph_sizes usual_sizes{256, 128, 128, 128, 128};

/// The first elements of each list of a graph, up to the sizes S.
template <graph_sizes S>
constexpr frozen_graph<S> frozen(const auto& g, const auto& dims) {
  return {first_of<S.nodes>(g.nodes),
          first_of<S.outputs>(g.outputs),
          first_of<S.symbols>(dims.symbols),
          first_of<S.symbols>(dims.same_as),
          first_of<S.checks>(dims.checks),
          first_of<S.laws>(dims.laws),
          g.leaves,
          g.arguments,
          g.sizes};
}

template <graph_sizes S>
constexpr frozen_graph<S> frozen_whole(const compute_graph& g) {
  return frozen<S>(g, g.dims);
}

struct measured_graph {
  graph_sizes sizes;
  frozen_graph<usual_sizes> begin;
};
constexpr measured_graph measured(const compute_graph& g) {
  return {sizes_of(g), frozen_whole<usual_sizes>(g)};
}
/// The graph returned by Source::make(). A variable, because clang recomputes a local constant of a function
/// whenever it evaluates a call.
template <class Source>
inline constexpr measured_graph measured_of = measured(Source::make());

}  // namespace detail

/// The graph returned by Source::make(), as a constant.
template <class Source>
constexpr auto freeze_graph() {
  constexpr const detail::measured_graph& g = detail::measured_of<Source>;
  if constexpr (g.sizes.fit_into(detail::usual_sizes)) return detail::frozen<g.sizes>(g.begin, g.begin);
  else return detail::frozen_whole<g.sizes>(Source::make());
}

}  // namespace weft::graph
