// SPDX-License-Identifier: MIT
// Mixed precision: products and attention are computed in bf16 or f16, everything else as written.
//
// What torch.autocast decides op by op at run time is one pass here: operands of products and of attention
// are rounded; results are stored in the same type and widened where they are read. Fused kernels write the
// rounded values, so products read, and the backward pass saves, half the bytes. Convolutions, which
// torch.autocast rounds, too, stay f32: the pass runs before they become products.
#pragma once

#include <weft/graph/rewrite.hpp>
#include <weft/op/attention.hpp>

namespace weft::graph {

namespace detail {

constexpr bool is_view(const node& n) { return n.op->kind == op::op_kind::view; }

/// `v` converted to type `t`, below its views, so that all views of a tensor read one rounded copy.
constexpr value rounded_to(value v, dtype t) {
  const node n = v.get();
  if (n.result.type == t) return v;
  if (n.operands != 1) return cast_to(v, t);
  value from{v.owner, n.operand[0]};
  if (n.op == &info_of<op::cast> && from.type() == t) return from;
  if (!is_view(n)) return cast_to(v, t);
  from = rounded_to(from, t);
  return v.owner->apply(*n.op, n.at, &from, 1);
}

/// Moves a view of a widened value before the widening, so that the kernel that reads the view does the
/// widening.
constexpr int widened_later(compute_graph& to, const node& n) {
  if (!is_view(n) || to[n.operand[0]].op != &info_of<op::cast>) return to.intern(n).id;
  value narrow{&to, to[n.operand[0]].operand[0]};
  if (!is_floating(narrow.type()) || size_of(narrow.type()) >= size_of(n.result.type)) return to.intern(n).id;
  return cast_to(to.apply(*n.op, n.at, &narrow, 1), n.result.type).id;
}

/// Attention, or its derivative, which comes from a `grad` inside an expression.
constexpr bool is_attention(const node& n) {
  return n.op == &info_of<op::attention> || n.op == &info_of<op::attention_backward>;
}
/// The attention whose widened value is node `id`; -1 if there is none.
constexpr int narrow_attention(const compute_graph& g, int id) {
  if (g[id].op != &info_of<op::cast>) return -1;
  const int from = g[id].operand[0];
  return is_attention(g[from]) ? from : -1;
}

/// Products that are the cotangent of an f32 leaf, or a summand of it, and have no other use.
constexpr sequence<bool> gradient_products(const compute_graph& g) {
  sequence<bool> is_wide(g.leaves, false);
  for (const node& n : g.nodes)
    if (n.op == &info_of<op::leaf>) is_wide[static_cast<int>(n.at[0])] = n.result.type == dtype::f32;
  const sequence<int> uses = uses_of(g);
  sequence<bool> found(g.size(), false);
  for (int o = 1; o < g.outputs.size(); ++o)
    if (g.outputs[o] >= 0 && is_wide[o - 1]) found[g.outputs[o]] = true;
  for (int i = g.size(); i-- > 0;) {
    const bool passes_on = g[i].op == &info_of<op::add> || g[i].op == &info_of<op::cast> || is_view(g[i]);
    for (int k = 0; found[i] && passes_on && k < g[i].operands; ++k)
      if (uses[g[i].operand[k]] == 1) found[g[i].operand[k]] = true;
  }
  return found;
}

}  // namespace detail

/// `g` with products and attention of f32 operands computed in `type`.
constexpr compute_graph with_products_in(dtype type, const compute_graph& g) {
  if (type == dtype::f32) return g;
  return rewritten(g, [&](compute_graph& to, const node& n) {
    if (n.op->kind == op::op_kind::result)
      if (const int narrow = detail::narrow_attention(to, n.operand[0]); narrow >= 0)
        return cast_to(result_of({&to, narrow}, static_cast<int>(n.at[0])), n.result.type).id;
    const bool attends = detail::is_attention(n);
    if ((n.op != &info_of<op::contract> && !attends) || to[n.operand[0]].result.type != dtype::f32)
      return detail::widened_later(to, n);
    value in[max_operands]{};
    for (int k = 0; k < n.operands; ++k) {
      in[k] = {&to, n.operand[k]};
      if (k != 4) in[k] = detail::rounded_to(in[k], type);  // the log-sums of attention's derivative are f32
    }
    const value narrow = attends ? to.apply(*n.op, n.at, in, n.operands) : contract_of(in[0], in[1]);
    return cast_to(narrow, dtype::f32).id;
  });
}

/// A joint graph in which gradients of f32 leaves are not rounded to the type of products on the way.
constexpr compute_graph with_wide_gradients(dtype type, const compute_graph& g) {
  if (type == dtype::f32) return g;
  const sequence<bool> found = detail::gradient_products(g);
  return rewritten(g, [&](compute_graph& to, const node& n, int i) {
    if (!found[i]) return to.intern(n).id;
    value v[] = {{&to, n.operand[0]}, {&to, n.operand[1]}};
    if (n.op == &info_of<op::contract> && n.result.type == type)
      return op::contract::wide_product(v[0], v[1]).id;
    if (n.op == &info_of<op::cast> && v[0].type() == n.result.type) return n.operand[0];
    if (detail::is_view(n) && v[0].type() != n.result.type) return to.apply(*n.op, n.at, v, 1).id;
    return to.intern(n).id;
  });
}

}  // namespace weft::graph
