// SPDX-License-Identifier: MIT
// The pass that divides a graph among ranks.
//
// Its result is an ordinary graph, which one rank computes, and whose divided extents are symbols for this
// rank's part (symbol_table::part). So laws, fusion, plans and kernels do not depend on ranks, mismatched
// parts are found by the same checks as other extents, and one program serves every number of ranks. The only
// new ops are the collectives of placement/collective.hpp.
//
//   const placed_graph p = place(joint, leaf_placements(joint));
//   if (p.found) ... else p.graph, messages_of(p.graph)
#pragma once

#include <weft/placement/divider.hpp>

namespace weft::graph {

namespace detail {
/// Whether a leaf may be an activation [batch, positions, ...]: a variable; or, in a graph without gradients,
/// where values between programs are not variables, any floating-point tensor of order 3 that is not a
/// parameter. An image has order 4.
constexpr bool is_activation(const compute_graph& g, const node& n) {
  if (n.op != &info_of<op::leaf> || n.result.extents.order < 3) return false;
  if (g.outputs.size() > 1) return n.role == leaf_role::variable;
  return n.result.extents.order == 3 && n.role != leaf_role::parameter && is_floating(n.result.type);
}
/// Whether a node looks up tokens [batch, positions]. Square index tensors may be differences of positions.
constexpr bool looks_up_tokens(const compute_graph& g, const node& n) {
  if (n.op != &info_of<op::index_select>) return false;
  const node& index = g[n.operand[1]];
  const shape& s = index.result.extents;
  return index.op == &info_of<op::leaf> && s.order == 2 && g.dims.canonical(s[0]) != g.dims.canonical(s[1]);
}
}  // namespace detail

/// The placements of the leaves of `g`, by number: parameters as declared by their types, activations in the
/// stream if it is divided, everything else whole. Excludes the seed of a joint graph.
constexpr sequence<placement> leaf_placements(const compute_graph& g, const stream_extents& stream = {}) {
  sequence<placement> all(g.leaves - (g.outputs.size() > 1), placement{});
  for (const node& n : g.nodes) {
    if (n.op != &info_of<op::leaf> || n.at[0] >= all.size()) continue;
    placement& p = all[static_cast<int>(n.at[0])];
    p = placement_of_leaf(n.at);
    const bool in_stream = detail::is_activation(g, n) && n.result.extents[1] == stream.positions;
    if (in_stream && stream.positions) p = divided_along(1);
  }
  return all;
}

/// The extents of the stream in `g`: those of the first activation [batch, positions, ...]; otherwise of the
/// result; otherwise, if the program is a whole model, of queries or tokens. Without gradients activations
/// are tried last, because data may look like them.
constexpr stream_extents stream_of(const compute_graph& g) {
  const auto extents = [&](const shape& s) {
    return stream_extents{g.dims.canonical(s[0]), g.dims.canonical(s[1])};
  };
  const auto first = [&](auto holds) {
    int i = 0;
    while (i < g.size() && !holds(g[i])) ++i;
    return i;
  };
  const int size = g.size(), activation = first([&](const node& n) { return detail::is_activation(g, n); });
  if (g.outputs.size() > 1 && activation < size) return extents(g[activation].result.extents);
  const shape& result = g[g.outputs[0]].result.extents;
  if (result.order == 3 || (result.order > 3 && g.outputs.size() > 1)) return extents(result);
  const int attends = first([](const node& n) { return n.op == &info_of<op::attention>; });
  if (attends < size) return extents(g[g[attends].operand[0]].result.extents);
  const int looks_up = first([&](const node& n) { return detail::looks_up_tokens(g, n); });
  if (looks_up < size) return extents(g[g[looks_up].operand[1]].result.extents);
  return activation < size ? extents(g[activation].result.extents) : stream_extents{};
}

/// `g` as one rank computes it; all ops of `g` must be expanded, and it may be a joint graph of forward and
/// backward pass. `leaves`: placements by number, without the seed of a joint graph. Gradients get the
/// placement of their leaf. Ranks exchange sums over ranks, gathers and scatters at the edges of the stream,
/// and values required by a divided leaf's gradient or by a product with the stream.
constexpr placed_graph place(const compute_graph& g, const sequence<placement>& leaves,
                             const stream_extents& stream = {}) {
  detail::placer p(g, leaves, stream);
  p.run();
  placed_graph out;
  out.found = p.found;
  if (!out.found) detail::divider(g, p).run(out, leaves);
  return out;
}

}  // namespace weft::graph
