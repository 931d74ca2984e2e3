// SPDX-License-Identifier: MIT
// Rewriting: a pass is a copy of the graph in which a function replaces each node.
//
// Nodes that no output needs are not copied, equal nodes are merged, and nodes keep their order.
//
//   compute_graph lean = rewritten(g, [](compute_graph& to, const node& n) { return to.intern(n).id; });
#pragma once

#include <type_traits>

#include <weft/graph/build.hpp>

namespace weft::graph {

/// The nodes on which the nodes `of` depend, without -1; if one of them is a result of a native op, all
/// results of that op, which writes them together.
constexpr sequence<bool> ancestors(const compute_graph& g, const sequence<int>& of) {
  sequence<bool> found(g.size(), false);
  for (int o : of)
    if (o >= 0) found[o] = true;
  for (int i = g.size(); i-- > 0;)
    if (found[i])
      for (int k = 0; k < g[i].operands; ++k) found[g[i].operand[k]] = true;
  for (int i = 0; i < g.size(); ++i)
    if (g[i].op->kind == op::op_kind::result && found[g[i].operand[0]]) found[i] = true;
  return found;
}

/// The nodes on which an output depends.
constexpr sequence<bool> live_nodes(const compute_graph& g) { return ancestors(g, g.outputs); }

/// How often each node is an operand of a live node or an output.
constexpr sequence<int> uses_of(const compute_graph& g) {
  const sequence<bool> live = live_nodes(g);
  sequence<int> uses(g.size(), 0);
  for (int i = 0; i < g.size(); ++i)
    for (int k = 0; live[i] && k < g[i].operands; ++k) ++uses[g[i].operand[k]];
  for (int o : g.outputs)
    if (o >= 0) ++uses[o];
  return uses;
}

namespace detail {
/// The node that owns the memory of a value, found through views.
constexpr int base_of(const compute_graph& g, int id) {
  while (g[id].op->kind == op::op_kind::view) id = g[id].operand[0];
  return id;
}
}  // namespace detail

/// A graph without nodes and outputs, but with the symbols of `g` and its numbers of leaves and arguments.
constexpr compute_graph without_nodes(const compute_graph& g) {
  compute_graph to;
  to.dims = g.dims;
  to.leaves = g.leaves;
  to.arguments = g.arguments;
  to.sizes = g.sizes;
  to.keeps_formulas = g.keeps_formulas;
  return to;
}

/// `g` with every live node n replaced by the node that f(to, n), or f(to, n, index in g), returns; the
/// operands of n are already nodes of `to`. An output of -1 stays -1.
template <class F>
constexpr compute_graph rewritten(const compute_graph& g, F f) {
  const sequence<bool> live = live_nodes(g);
  compute_graph to = without_nodes(g);
  sequence<int> renumbered(g.size(), -1);
  for (int i = 0; i < g.size(); ++i) {
    if (!live[i]) continue;
    node n = g[i];
    for (int k = 0; k < n.operands; ++k) n.operand[k] = renumbered[n.operand[k]];
    if constexpr (std::is_invocable_v<F, compute_graph&, const node&, int>) renumbered[i] = f(to, n, i);
    else renumbered[i] = f(to, n);
  }
  for (int o : g.outputs) to.outputs.push_back(o < 0 ? -1 : renumbered[o]);
  return to;
}

/// `g` without nodes that no output needs.
constexpr compute_graph without_dead_code(const compute_graph& g) {
  return rewritten(g, [](compute_graph& to, const node& n) { return to.intern(n).id; });
}

/// `g` with every symbol replaced by the extent with which it was unified, so that equal shapes compare
/// equal.
constexpr compute_graph with_canonical_extents(const compute_graph& g) {
  compute_graph canonical = rewritten(g, [](compute_graph& to, node n) {
    n.result.extents = to.dims.canonical(n.result.extents);
    n.at = to.dims.canonical(n.at, n.op->extents);
    return to.intern(n).id;
  });
  canonical.dims.unified = 0;
  return canonical;
}

/// Whether formulas are left to expand: formulas may be written in terms of others.
template <class Keeps>
constexpr bool holds_formulas(const compute_graph& g, Keeps keeps) {
  for (int i = 0; i < g.size(); ++i)
    if (g[i].op->kind == op::op_kind::composed && !keeps(g, g[i])) return true;
  return false;
}

/// `g` with composed ops expanded to their formulas, except nodes n of a graph for which keeps(graph, n)
/// holds, and without ops that matter only for differentiation. Repeated if formulas contain others, or if
/// derivatives or formulas have unified extents of earlier nodes.
template <class Keeps>
constexpr compute_graph expanded(const compute_graph& g, Keeps keeps) {
  compute_graph formulas = rewritten(g, [keeps](compute_graph& to, const node& n) {
    to.differentiated = true;
    if (n.op == &info_of<op::detach> || n.op == &info_of<op::differentiated_at>) return n.operand[0];
    if (n.op->kind != op::op_kind::composed || keeps(to, n)) {
      const int simpler = n.op->arity > 0 ? simplified(to, n) : -1;
      return simpler >= 0 ? simpler : to.intern(n).id;
    }
    return cast_to({&to, n.op->expand(to, n)}, n.result.type).id;
  });
  if (formulas.dims.unified) formulas = with_canonical_extents(formulas);
  else if (!holds_formulas(formulas, keeps)) return formulas;
  return expanded(formulas, keeps);
}

/// The same with all composed ops expanded.
constexpr compute_graph expanded(const compute_graph& g) {
  return expanded(g, [](const compute_graph&, const node&) { return false; });
}

}  // namespace weft::graph
