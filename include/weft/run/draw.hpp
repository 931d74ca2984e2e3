// SPDX-License-Identifier: MIT
// Drawing of an expression's graph, with the kernels into which its nodes are fused, in the DOT language of
// Graphviz.
//
//   std::ofstream("model.dot") << to_dot(softmax(matmul(x, w)));      // dot -Tsvg model.dot -o model.svg
//
// Computed at run time by the passes that the compiler runs. The umbrella header does not include it.
#pragma once

#include <string>

#include <weft/graph/print.hpp>
#include <weft/run/program.hpp>

namespace weft {

/// The graph of `e` as it is evaluated: composed ops are expanded, the nodes of one kernel are in one box,
/// and matmuls, other native ops and views are outside the boxes. `Options` are those of a policy:
/// `plan::programs`.
template <class Options = program_options<>, expression E>
std::string to_dot(const E&) {
  const graph::compute_graph g = graph::with_legal_views(
      graph::with_transposed_products(graph::expanded(runtime::detail::graph_of<E, Options>())));
  return graph::to_dot(g, graph::fuse(g));
}

/// The same for `e` and its derivative: everything that a tape computes for it.
template <class Options = program_options<>, expression E>
std::string to_dot_with_gradients(const E&) {
  const graph::compute_graph g =
      graph::with_legal_views(graph::with_transposed_products(runtime::detail::joint_graph_of<E, Options>()));
  return graph::to_dot(g, graph::fuse(g));
}

}  // namespace weft
