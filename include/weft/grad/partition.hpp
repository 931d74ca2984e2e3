// SPDX-License-Identifier: MIT
// Partition of a joint graph into a forward and a backward program: which values are saved, and which are
// recomputed.
//
// Backward reads values of forward. A value that forward writes to memory anyway is saved; one that exists
// only inside a fused kernel is recomputed from saved values, because the same backward kernel reads its
// operands. Views, numbers and leaves cost nothing.
//
// A joint graph has outputs [result, cotangent of leaf 0, of leaf 1, ...].
#pragma once

#include <weft/grad/reverse.hpp>

namespace weft::autodiff {

namespace detail {

/// The nodes on which the value `of` depends, including the other results of native ops among them.
constexpr sequence<bool> ancestors(const compute_graph& g, int of) {
  sequence<bool> found(g.size(), false);
  found[of] = true;
  for (int i = of; i >= 0; --i)
    if (found[i])
      for (int k = 0; k < g[i].operands; ++k) found[g[i].operand[k]] = true;
  for (int i = 0; i < g.size(); ++i)
    if (g[i].op->kind == op::op_kind::result && found[g[i].operand[0]]) found[i] = true;
  return found;
}

/// Forward nodes whose value is written to memory: results of kernels that cannot fuse, and their operands.
constexpr sequence<bool> written_by_forward(const compute_graph& g, const sequence<bool>& forward) {
  sequence<bool> written(g.size(), false);
  for (int i = 0; i < g.size(); ++i) {
    if (!forward[i]) continue;
    switch (g[i].op->kind) {
      case op::op_kind::elementwise: break;
      case op::op_kind::reduce: written[i] = true; break;
      case op::op_kind::leaf: case op::op_kind::constant: break;
      case op::op_kind::view: break;
      default:
        written[i] = true;
        for (int k = 0; k < g[i].operands; ++k) {
          int base = g[i].operand[k];
          while (g[base].op->kind == op::op_kind::view) base = g[base].operand[0];
          written[base] = true;
        }
    }
  }
  written[g.outputs[0]] = true;
  return written;
}

/// A leaf, or a node without leaves among its operands; also a leaf cast to another type, which is cheaper to
/// recompute than to save.
constexpr bool is_source(const compute_graph& g, int id) {
  const graph::node& n = g[id];
  return n.op->kind == op::op_kind::leaf || n.op->kind == op::op_kind::constant ||
         n.op == &graph::info_of<op::coordinate> ||
         (n.op == &graph::info_of<op::cast> && g[n.operand[0]].op->kind == op::op_kind::leaf);
}

}  // namespace detail

/// Forward values that are saved for backward, in node order: those that forward writes, or only those of
/// them that no element-wise op computes.
constexpr sequence<int> saved_values(const compute_graph& g, bool all_written = true) {
  const sequence<bool> forward = detail::ancestors(g, g.outputs[0]);
  const sequence<bool> written = detail::written_by_forward(g, forward);
  sequence<bool> needed(g.size(), false);
  for (int i = 1; i < g.outputs.size(); ++i)
    if (g.outputs[i] >= 0) needed[g.outputs[i]] = true;
  sequence<bool> keep(g.size(), false);
  for (int i = g.size(); i-- > 0;) {
    if (!needed[i]) continue;
    const bool again = !all_written && i != g.outputs[0] && g[i].op->kind == op::op_kind::elementwise;
    keep[i] = forward[i] && written[i] && !again && !detail::is_source(g, i);
    if (!keep[i])
      for (int k = 0; k < g[i].operands; ++k) needed[g[i].operand[k]] = true;
  }
  sequence<int> kept;
  for (int i = 0; i < g.size(); ++i)
    if (keep[i]) kept.push_back(i);
  return kept;
}

/// The forward program: outputs are the result and the saved values.
constexpr compute_graph forward_part(compute_graph joint, const sequence<int>& kept) {
  const int result = joint.outputs[0];
  joint.outputs = {result};
  for (int k : kept) joint.outputs.push_back(k);
  return without_dead_code(joint);
}

/// The backward program: outputs are the cotangents. Saved values become further leaves, followed by the
/// seed, which is the last leaf of the joint graph.
constexpr compute_graph backward_part(compute_graph joint, const sequence<int>& kept) {
  const int first = joint.leaves - 1;
  for (int i = 0; i < joint.size(); ++i)
    if (joint[i].op == &graph::info_of<op::leaf> && joint[i].at[0] == first)
      joint.nodes[i].at[0] = first + kept.size();
  for (int k = 0; k < kept.size(); ++k) {
    graph::node& n = joint.nodes[kept[k]];
    n.op = &graph::info_of<op::leaf>;
    n.at = {{first + k}, 1};
    n.operands = 0;
  }
  joint.leaves += kept.size();
  sequence<int> cotangents;
  for (int i = 1; i < joint.outputs.size(); ++i) cotangents.push_back(joint.outputs[i]);
  joint.outputs = cotangents;
  return without_dead_code(joint);
}

}  // namespace weft::autodiff
