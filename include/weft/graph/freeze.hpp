// SPDX-License-Identifier: MIT
// Freezing: a graph computed in one constant evaluation, stored for the next.
//
// Compilers bound the work of one evaluation (clang: a million steps), and memory allocated in an evaluation
// must not outlive it. So a long computation is divided into stages, between which a graph is stored in
// tables of exact size.
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
  constexpr void fill(const sequence<T>& from) {
    for (int i = 0; i < N; ++i) data[i] = from[i];
  }
  constexpr sequence<T> to_sequence() const {
    sequence<T> s;
    for (int i = 0; i < N; ++i) s.push_back(data[i]);
    return s;
  }
};

}  // namespace weft

namespace weft::graph {

/// Sizes of the tables of a frozen graph.
struct graph_sizes {
  int nodes, outputs, symbols, checks, laws;
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
  return {g.nodes.size(), g.outputs.size(), g.dims.symbols.size(), g.dims.checks.size(),
          g.dims.laws.size()};
}

/// The graph returned by Source::make(), as a constant.
template <class Source>
consteval auto freeze_graph() {
  constexpr graph_sizes sizes = sizes_of(Source::make());
  const compute_graph g = Source::make();
  frozen_graph<sizes> frozen;
  frozen.nodes.fill(g.nodes);
  frozen.outputs.fill(g.outputs);
  frozen.symbols.fill(g.dims.symbols);
  frozen.same_as.fill(g.dims.same_as);
  frozen.checks.fill(g.dims.checks);
  frozen.laws.fill(g.dims.laws);
  frozen.leaves = g.leaves;
  frozen.arguments = g.arguments;
  frozen.sizes = g.sizes;
  return frozen;
}

}  // namespace weft::graph
