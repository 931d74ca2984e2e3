// SPDX-License-Identifier: MIT
// Graphs as text and in the DOT language, to inspect the result of passes. run/draw.hpp draws expressions.
//
//   compute_graph g;
//   g.outputs.push_back(flatten<decltype(loss)>(g).id);
//   std::puts(to_text(g).c_str());
#pragma once

#include <string>

#include <weft/graph/build.hpp>
#include <weft/graph/fuse.hpp>

namespace weft::graph {

namespace detail {
std::string text_of_constant(const node& n);
std::string described(const compute_graph& g, int i);
inline bool is_output(const compute_graph& g, int i) { return g.outputs.contains(i); }
std::string dot_of_node(const compute_graph& g, int i);
}  // namespace detail

/// One line per node: "%3 = add(%1, %2)  f32 [32, 784]"; outputs are marked.
std::string to_text(const compute_graph& g);

/// The graph in the DOT language; outputs are drawn bold, and nodes that `f` fuses into one kernel are in a
/// box.
std::string to_dot(const compute_graph& g, const fusion& f = {});

}  // namespace weft::graph

#ifndef WEFT_COMPILED
#include <weft/graph/impl/print.ipp>
#endif
