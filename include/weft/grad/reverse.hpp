// SPDX-License-Identifier: MIT
// Reverse-mode differentiation of graphs.
//
// Visits the nodes in reverse order and requests from each op the cotangents of its operands, which are new
// nodes of the same graph. Applied to its own result, it gives second derivatives.
#pragma once

#include <weft/graph/rewrite.hpp>

namespace weft::autodiff {

/// The graph and its nodes, as op definitions name them.
using graph::compute_graph;
using graph::value;

namespace detail {

/// Writes the cotangents of those results of node `i` whose cotangents its derivative takes, with zeros for
/// results without one; returns whether any cotangent flows.
constexpr bool gather_cotangents(compute_graph& g, int i, const sequence<int>& cotangent, int* of_results) {
  const int count = g[i].op->cotangents;
  bool flows = false;
  for (int k = 0; k < count; ++k) {
    const int result = k ? graph::result_of({&g, i}, k).id : i;
    of_results[k] = result < cotangent.size() ? cotangent[result] : -1;
    flows |= of_results[k] >= 0;
  }
  for (int k = 0; flows && k < count; ++k) {
    if (of_results[k] >= 0) continue;
    const value result = k ? graph::result_of({&g, i}, k) : value{&g, i};
    of_results[k] = expand_to(g.constant(0, result.type()), result.extents()).id;
  }
  return flows;
}

/// Whether node `i` is a second or later result whose cotangent the derivative of its op takes.
constexpr bool is_taken_with_op(const compute_graph& g, int i) {
  return g[i].op == &graph::info_of<op::result> && g[i].at[0] < g[g[i].operand[0]].op->cotangents;
}

/// The nodes that have cotangents: those that gradients reach; if `from` is a node, it and those of them that
/// depend on it.
constexpr sequence<bool> differentiated_nodes(const compute_graph& g, int from) {
  sequence<bool> found(g.size(), false);
  for (int i = 0; i < g.size(); ++i) {
    bool depends = from < 0 || i == from;
    for (int k = 0; k < g[i].operands; ++k) depends = depends || (from >= 0 && found[g[i].operand[k]]);
    found[i] = depends && g[i].needs_gradient;
  }
  return found;
}

}  // namespace detail

/// Appends the cotangents of the nodes on which `output` depends, given its own cotangent, `seed`: of all of
/// them, or of `from` and the nodes between. Returns them by node; -1 for nodes without one. Throws
/// value_error for an op without a derivative, and shape_error for a cotangent with fewer dims than its
/// operand. A template, so that programs without differentiation compile no derivatives.
template <class Ops = op::all::list>
constexpr sequence<int> reverse(compute_graph& g, int output, int seed, int from = -1) {
  const sequence<bool> differentiated = detail::differentiated_nodes(g, from);
  sequence<int> cotangent(g.size(), -1);
  cotangent[output] = seed;
  for (int i = output; i > from; --i) {
    if (!differentiated[i] || g[i].operands == 0 || detail::is_taken_with_op(g, i)) continue;
    const graph::node n = g[i];
    int of_results[graph::max_results]{}, operand_cotangents[graph::max_operands]{};
    if (!detail::gather_cotangents(g, i, cotangent, of_results)) continue;
    if (!n.op->has_vjp)
      throw value_error(std::string("weft: ") + n.op->name + ": this op has no derivative");
    graph::vjp_of<Ops>(*n.op)(g, i, of_results, operand_cotangents);
    for (int k = 0; k < n.operands; ++k) {
      const int o = n.operand[k];
      if (operand_cotangents[k] < 0 || !differentiated[o]) continue;
      value c{&g, operand_cotangents[k]};
      if (c.extents().order < g[o].result.extents.order)
        throw shape_error(std::string("weft: ") + n.op->name +
                          ": its vjp returns fewer dims than the operand has");
      c = sum_to(c, g[o].result.extents);
      if (!has_wide_cotangent(value{&g, o})) c = cast_to(c, g[o].result.type);
      cotangent[o] = cotangent[o] < 0 ? c.id : (value{&g, cotangent[o]} + c).id;
    }
  }
  return cotangent;
}

/// The node of each leaf by leaf number; -1 for leaves that have been removed.
constexpr sequence<int> leaf_nodes(const compute_graph& g) {
  sequence<int> nodes(g.leaves, -1);
  for (int i = 0; i < g.size(); ++i)
    if (g[i].op == &graph::info_of<op::leaf>) nodes[static_cast<int>(g[i].at[0])] = i;
  return nodes;
}

/// `g`, whose only output is a value, with the cotangent of every leaf as further outputs, -1 for leaves
/// without one. Adds a last leaf, the seed: the cotangent of the value.
template <class Ops = op::all::list>
constexpr compute_graph with_cotangents(compute_graph g) {
  const int result = g.outputs[0];
  graph::node seed;
  seed.op = &graph::info_of<op::leaf>;
  seed.at = {{g.leaves++}, 1};
  seed.result = g[result].result;
  const int seed_id = g.append(seed).id;
  const sequence<int> leaves = leaf_nodes(g);
  const sequence<int> cotangents = reverse<Ops>(g, result, seed_id);
  for (int i = 0; i + 1 < g.leaves; ++i) {
    const bool flows = leaves[i] >= 0 && g[leaves[i]].needs_gradient;
    g.outputs.push_back(flows ? cotangents[leaves[i]] : -1);
  }
  return g;
}

}  // namespace weft::autodiff
