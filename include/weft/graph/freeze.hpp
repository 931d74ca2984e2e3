// SPDX-License-Identifier: MIT
// Freezing: a graph made in one constant evaluation, kept for the next.
//
// Compilers bound the work of one evaluation (clang: a million steps), and what an evaluation
// allocates must not outlive it. So a long road has stops, where a graph becomes tables of exact
// size that the next evaluation starts from.
//
//   static constexpr auto joint = freeze_graph<source>();      // source::make() gives a graph
//   ... joint.thaw() ...
#pragma once

#include <span>

#include <weft/graph/rewrite.hpp>

namespace weft {

/// An array of exact size in a constant, which may be empty.
template <class T, int N>
struct fixed_table {
  T data[N > 0 ? N : 1]{};

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

struct graph_sizes {
  int nodes, outputs, symbols, checks, laws;
};

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

constexpr graph_sizes sizes_of(const compute_graph& g) {
  return {g.nodes.size(), g.outputs.size(), g.dims.symbols.size(), g.dims.checks.size(),
          g.dims.laws.size()};
}

/// The graph that `Source::make()` gives, as a constant.
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
