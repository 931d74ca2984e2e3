// SPDX-License-Identifier: MIT
// Partition of a joint graph into a forward and a backward program: which values are saved, and which are
// recomputed.
//
// The backward program reads values of the forward program. A value that the forward program writes to memory
// anyway is saved; one that exists only inside a fused kernel is recomputed from saved values, since the same
// backward kernel reads its operands. Views, numbers and leaves cost nothing.
//
// A joint graph has outputs [result, cotangent of leaf 0, of leaf 1, ...].
#pragma once

#include <weft/grad/reverse.hpp>

namespace weft::autodiff {

namespace detail {

/// The nodes among `forward`, the ancestors of `results`, whose values are written to memory: results of
/// kernels that cannot fuse, and their operands.
constexpr sequence<bool> written_by_forward(const compute_graph& g, const sequence<bool>& forward,
                                            const sequence<int>& results) {
  sequence<bool> written(g.size(), false);
  for (int i = 0; i < g.size(); ++i) {
    if (!forward[i]) continue;
    switch (g[i].op->kind) {
      case op::op_kind::elementwise: break;
      case op::op_kind::reduce: written[i] = true; break;
      case op::op_kind::leaf:
      case op::op_kind::constant: break;
      case op::op_kind::view: break;
      default:
        written[i] = true;
        for (int k = 0; k < g[i].operands; ++k) written[graph::detail::base_of(g, g[i].operand[k])] = true;
    }
  }
  for (int r : results) written[r] = true;
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

/// Whether a value is gathered from other ranks.
constexpr bool is_gather(const graph::node& n) {
  return n.op->kind == op::op_kind::native && n.op->native->repeats;
}

}  // namespace detail

/// Values that a program with the outputs `first` computes and one with the outputs `second` reads, in node
/// order: those that the first program writes and for which keeps(node) holds.
template <class Keeps>
constexpr sequence<int> values_between(const compute_graph& g, const sequence<int>& first,
                                       const sequence<int>& second, Keeps keeps) {
  const sequence<bool> forward = graph::ancestors(g, first);
  const sequence<bool> written = detail::written_by_forward(g, forward, first);
  sequence<bool> needed(g.size(), false), is_result(g.size(), false);
  for (int o : second) needed[o] = true;
  for (int o : first) is_result[o] = true;
  sequence<bool> keep(g.size(), false);
  for (int i = g.size(); i-- > 0;) {
    if (!needed[i]) continue;
    keep[i] = forward[i] && written[i] && (is_result[i] || keeps(g[i])) && !detail::is_source(g, i);
    if (!keep[i])
      for (int k = 0; k < g[i].operands; ++k) needed[g[i].operand[k]] = true;
  }
  sequence<int> kept;
  for (int i = 0; i < g.size(); ++i)
    if (keep[i]) kept.push_back(i);
  return kept;
}

/// Forward values of a joint graph that are saved for the backward program: all values that the forward
/// program writes, or only those not computed by element-wise ops. Never values that are gathered from other
/// ranks or padded: the backward program gathers or pads again, as the operand is in memory and smaller.
constexpr sequence<int> saved_values(const compute_graph& joint, bool all_written = true) {
  sequence<int> cotangents;
  for (int i = 1; i < joint.outputs.size(); ++i)
    if (joint.outputs[i] >= 0) cotangents.push_back(joint.outputs[i]);
  return values_between(joint, {joint.outputs[0]}, cotangents, [&](const graph::node& n) {
    return !detail::is_gather(n) && n.op != &graph::info_of<op::pad> &&
           (all_written || n.op->kind != op::op_kind::elementwise);
  });
}

namespace detail {
/// `g` with the given nodes replaced by further leaves, numbered from `first` on.
constexpr void make_leaves(compute_graph& g, const sequence<int>& nodes, int first) {
  for (int k = 0; k < nodes.size(); ++k) {
    graph::node& n = g.nodes[nodes[k]];
    n.op = &graph::info_of<op::leaf>;
    n.at = {{first + k}, 1};
    n.operands = 0;
  }
  g.leaves += nodes.size();
}
}  // namespace detail

/// The forward program; its outputs are the result and the saved values.
constexpr compute_graph forward_part(compute_graph joint, const sequence<int>& kept) {
  const int result = joint.outputs[0];
  joint.outputs = {result};
  for (int k : kept) joint.outputs.push_back(k);
  return without_dead_code(joint);
}

namespace detail {
/// Appends node `i` of `g` to `to`, after its operands; `renumbered` is -1 for nodes not yet in `to`.
constexpr void append_with_operands(const compute_graph& g, int i, compute_graph& to,
                                    sequence<int>& renumbered) {
  if (renumbered[i] >= 0) return;
  graph::node n = g[i];
  for (int k = 0; k < n.operands; ++k) {
    append_with_operands(g, n.operand[k], to, renumbered);
    n.operand[k] = renumbered[n.operand[k]];
  }
  renumbered[i] = to.append(n).id;
}
}  // namespace detail

/// `g` with values gathered from other ranks, and views of them, moved to directly before their first reader,
/// so that they take memory no longer than needed. Without gathers, `g` itself.
constexpr compute_graph with_late_gathers(const compute_graph& g) {
  bool gathers = false;
  for (int i = 0; i < g.size(); ++i) gathers = gathers || detail::is_gather(g[i]);
  if (!gathers) return g;
  compute_graph to = graph::without_nodes(g);
  sequence<int> renumbered(g.size(), -1);
  for (int i = 0; i < g.size(); ++i) {
    const bool late = g[i].op->kind == op::op_kind::view || detail::is_gather(g[i]);
    if (!late || g.outputs.contains(i)) detail::append_with_operands(g, i, to, renumbered);
  }
  for (int o : g.outputs) to.outputs.push_back(o < 0 ? -1 : renumbered[o]);
  return to;
}

/// The backward program; its outputs are the cotangents. Saved values become further leaves, followed by the
/// seed, which is the last leaf of the joint graph.
constexpr compute_graph backward_part(compute_graph joint, const sequence<int>& kept) {
  const int first = joint.leaves - 1;
  for (int i = 0; i < joint.size(); ++i)
    if (joint[i].op == &graph::info_of<op::leaf> && joint[i].at[0] == first)
      joint.nodes[i].at[0] = first + kept.size();
  detail::make_leaves(joint, kept, first);
  sequence<int> cotangents;
  for (int i = 1; i < joint.outputs.size(); ++i) cotangents.push_back(joint.outputs[i]);
  joint.outputs = cotangents;
  return with_late_gathers(without_dead_code(joint));
}

/// The backward program in two parts: `input` computes the cotangents of all leaves except parameters,
/// `weight` those of parameters. Further outputs of the first part are values that the second reads as its
/// last leaves.
struct divided_backward {
  compute_graph input, weight;
};
constexpr divided_backward backward_in_parts(const compute_graph& joint, const sequence<int>& kept) {
  sequence<bool> is_parameter(joint.leaves, false);
  for (int i = 0; i < joint.size(); ++i)
    if (joint[i].op == &graph::info_of<op::leaf>)
      is_parameter[static_cast<int>(joint[i].at[0])] = joint[i].role == leaf_role::parameter;
  divided_backward parts{backward_part(joint, kept), {}};
  compute_graph& input = parts.input;
  compute_graph& weight = parts.weight = input;
  sequence<int> first, second;
  for (int i = 0; i < input.outputs.size(); ++i) {
    int& unused = is_parameter[i] ? input.outputs[i] : weight.outputs[i];
    if (unused >= 0) (is_parameter[i] ? second : first).push_back(unused);
  }
  for (int i = 0; i < input.outputs.size(); ++i)
    (is_parameter[i] ? input.outputs[i] : weight.outputs[i]) = -1;
  const sequence<int> passed = values_between(input, first, second, [](const graph::node&) { return true; });
  for (int p : passed) input.outputs.push_back(p);
  detail::make_leaves(weight, passed, weight.leaves);
  return {without_dead_code(input), without_dead_code(weight)};
}

}  // namespace weft::autodiff
