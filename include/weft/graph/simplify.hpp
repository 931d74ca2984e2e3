// SPDX-License-Identifier: MIT
// Simplification: nodes that need not be computed because an existing node has the same value.
//
// Uses only identities that hold for all IEEE values, including infinities and NaN: x * 1 is x, but x * 0 is
// not 0. One exception: where padded parts of a tensor are joined rather than added, -0 stays -0, while
// -0 + 0 would be +0.
#pragma once

#include <weft/graph/op_info.hpp>

namespace weft::graph {

namespace detail {

constexpr bool is_constant(const compute_graph& g, int id) { return g[id].op == &info_of<op::constant>; }
constexpr bool is_constant(const compute_graph& g, int id, int x) {
  return is_constant(g, id) && g[id].at[0] == any_number::of(g[id].result.type, x).bits;
}

/// The value of an instruction on constants, which are doubles, or integers modulo 2^64; false if it cannot
/// be folded.
template <class Number>
constexpr bool fold(op_pointer op, Number a, Number b, Number& out) {
  if (op == &info_of<op::add>) out = a + b;
  else if (op == &info_of<op::subtract>) out = a - b;
  else if (op == &info_of<op::multiply>) out = a * b;
  else if (op == &info_of<op::divide> && b != 0) out = a / b;
  else if (op == &info_of<op::negate>) out = -a;
  else return false;
  return true;
}

/// The instruction `n` on constants as a constant; -1 if it cannot be folded.
constexpr int folded(compute_graph& g, const node& n, int a, int b) {
  const dtype from = g[a].result.type, to = n.result.type;
  const any_number x{g[a].at[0]}, y{g[b].at[0]};
  const auto in_f32 = [](double z) { return static_cast<double>(static_cast<float>(z)); };
  const auto rounded = [&](double z) { return g.constant(to == dtype::f32 ? in_f32(z) : z, to).id; };
  if (n.op == &info_of<op::cast> && from == dtype::f32) return rounded(in_f32(x.as<double>()));
  if (n.op == &info_of<op::cast>)
    return is_floating(from) ? rounded(x.as<double>()) : g.constant(x.bits, to).id;
  if (from != to) return -1;
  if (is_floating(to)) {
    double z = 0;
    return fold(n.op, x.as<double>(), y.as<double>(), z) ? rounded(z) : -1;
  }
  std::uint64_t z = 0;
  const bool folds = fold(n.op, static_cast<std::uint64_t>(x.bits), static_cast<std::uint64_t>(y.bits), z);
  return folds ? g.constant(static_cast<std::int64_t>(z), to).id : -1;
}

/// Whether type `wide` represents every value of type `t`.
constexpr bool holds_all(dtype wide, dtype t) {
  if (wide == dtype::f64) return t != dtype::i64;
  if (wide == dtype::f32) return is_narrow(t) || t == dtype::u8 || t == dtype::boolean;
  if (is_floating(t) || is_floating(wide)) return false;
  return wide < t;  // integers: the wider one is listed first
}

/// Two nested views of the same kind as one: permute of permute, reshape of reshape; -1 if they are not.
constexpr int merged_views(compute_graph& g, const node& n) {
  const node inner = g[n.operand[0]];
  if (n.op != inner.op) return -1;
  node merged = n;
  merged.operand[0] = inner.operand[0];
  if (n.op == &info_of<op::permute>) {
    const int order = n.result.extents.order;
    for (int i = 0; i < order; ++i) merged.at[i] = inner.at[static_cast<int>(n.at[i])];
    bool identity = true;
    for (int i = 0; i < order; ++i) identity = identity && merged.at[i] == i;
    return identity ? inner.operand[0] : g.intern(merged).id;
  }
  if (n.op == &info_of<op::reshape>) {
    const shape from = g.dims.canonical(g[inner.operand[0]].result.extents);
    if (from == g.dims.canonical(n.result.extents)) return inner.operand[0];
    return g.intern(merged).id;
  }
  return -1;
}

/// The constant of which the view `n` repeats the value; -1 if there is none, or if `n` says so itself.
constexpr int repeated_constant(const compute_graph& g, const node& n) {
  const node& from = g[n.operand[0]];
  if (is_constant(g, n.operand[0])) return n.op == &info_of<op::expand> ? -1 : n.operand[0];
  return from.op == &info_of<op::expand> && is_constant(g, from.operand[0]) ? from.operand[0] : -1;
}

/// An element-wise op on expanded operands, computed before they are expanded; -1 if none is expanded.
constexpr int before_expand(compute_graph& g, const node& n) {
  node narrow = n;
  bool found = false;
  tensor_spec specs[max_operands + 1]{};
  for (int i = 0; i < n.operands; ++i) {
    const node& operand = g[n.operand[i]];
    if (operand.op == &info_of<op::expand>) {
      narrow.operand[i] = operand.operand[0];
      found = true;
    }
    specs[i] = g[narrow.operand[i]].result;
    specs[i].extents = g.dims.canonical(specs[i].extents);
  }
  if (!found) return -1;
  narrow.result = n.op->infer(g.dims, n.at, specs).value;
  const shape to = g.dims.canonical(n.result.extents);
  const value computed = g.intern(narrow);
  if (g.dims.canonical(narrow.result.extents) == to) return computed.id;
  node expanded;
  expanded.op = &info_of<op::expand>;
  expanded.at = extents_attributes(to);
  expanded.result = {narrow.result.type, to};
  expanded.operand[0] = computed.id;
  expanded.operands = 1;
  expanded.needs_gradient = n.needs_gradient;
  return g.intern(expanded).id;
}

/// pad(x) + pad(y) of adjacent parts of a dim as pad(concat(x, y)); the cotangents of the parts of a split
/// tensor have this form. -1 if the operands do not.
constexpr int joined_pads(compute_graph& g, int first, int second) {
  const node a = g[first], b = g[second];
  if (b.op != a.op || !(a.result == b.result)) return -1;
  if (a.op == &info_of<op::cast>) {  // for narrow types, whose sums are computed in f32
    const int narrow = joined_pads(g, a.operand[0], b.operand[0]);
    return narrow < 0 ? -1 : cast_to({&g, narrow}, a.result.type).id;
  }
  if (a.op != &info_of<op::pad>) return -1;
  if (a.at[0] != b.at[0] || a.at[3] != 1 || b.at[3] != 1) return -1;
  const int dim = static_cast<int>(a.at[0]);
  const value x{&g, a.operand[0]}, y{&g, b.operand[0]};
  if (g.dims.canonical(g.dims.add(a.at[1], x.extents()[dim])) != g.dims.canonical(b.at[1]))
    return -1;
  const value both = g.apply<op::concat>(attributes{{dim}, 1}, x, y);
  if (a.at[1] == 0 && g.dims.canonical(both.extents()[dim]) == g.dims.canonical(a.at[2]))
    return both.id;
  return g.apply<op::pad>(a.at, both).id;
}

}  // namespace detail

/// An existing node with the value of `n`; -1 if `n` has to be computed.
constexpr int simplified(compute_graph& g, const node& n) {
  using detail::is_constant;
  if (n.op->kind == op::op_kind::view) {
    const tensor_spec& from = g[n.operand[0]].result;
    const bool same = g.dims.canonical(from.extents) == g.dims.canonical(n.result.extents);
    if (same && (n.op == &info_of<op::reshape> || n.op == &info_of<op::expand>))
      return n.operand[0];
    if (const int constant = detail::repeated_constant(g, n); constant >= 0)
      return expand_to({&g, constant}, n.result.extents).id;
    return detail::merged_views(g, n);
  }
  if (n.op->kind == op::op_kind::reduce && g.dims.canonical(g[n.operand[0]].result.extents) ==
                                               g.dims.canonical(n.result.extents))
    return n.operand[0];  // reduces only extents of 1
  if (n.op->kind != op::op_kind::elementwise || n.operands == 0) return -1;
  const int a = n.operand[0], b = n.operands > 1 ? n.operand[1] : a;
  if (is_constant(g, a) && is_constant(g, b) && n.operands <= 2) return detail::folded(g, n, a, b);
  if (n.op == &info_of<op::cast>) {
    if (g[a].result.type == n.result.type) return a;
    const int source = g[a].op == n.op ? g[a].operand[0] : a;  // there and back
    if (g[source].result.type == n.result.type && detail::holds_all(g[a].result.type, n.result.type))
      return source;
  }
  if ((n.op == &info_of<op::floor> || n.op == &info_of<op::round>) && !is_floating(n.result.type)) return a;
  const bool as_a = g[a].result == n.result, as_b = g[b].result == n.result;
  if (n.op == &info_of<op::multiply>) {
    if (is_constant(g, b, 1) && as_a) return a;
    if (is_constant(g, a, 1) && as_b) return b;
  }
  if ((n.op == &info_of<op::divide> && is_constant(g, b, 1) && as_a) ||
      (n.op == &info_of<op::subtract> && is_constant(g, b, 0) && as_a))
    return a;
  if (n.op == &info_of<op::add>) {
    const int joined = detail::joined_pads(g, a, b);
    if (joined >= 0) return joined;
    if (const int reversed = detail::joined_pads(g, b, a); reversed >= 0) return reversed;
  }
  if (n.op == &info_of<op::negate> && g[a].op == &info_of<op::negate>) return g[a].operand[0];
  return n.op == &info_of<op::contiguous> ? -1 : detail::before_expand(g, n);
}

}  // namespace weft::graph
