// SPDX-License-Identifier: MIT
// Which views a reader can follow by strides, and copies where it cannot.
//
// A reshape is a view if the dims it merges lie in memory as one: `joined` holds, per value, which
// dims continue into the next. Splitting a dim is always a view.
#pragma once

#include <weft/graph/rewrite.hpp>

namespace weft::graph {

/// Bit i: dims i and i+1 lie in memory as one dim would.
constexpr unsigned all_joined(int order) { return order < 2 ? 0u : (1u << (order - 1)) - 1; }

namespace detail {

/// The dims of `from` that become the dims of `to`, group by group of equal product; calls
/// f(first, last, to_first, to_last) for each. False if the shapes do not group.
template <class F>
constexpr bool for_each_group(symbol_table& dims, const shape& from, const shape& to, F f) {
  int i = 0, j = 0;
  while (i < from.order || j < to.order) {
    const int i0 = i, j0 = j;
    if (i == from.order || j == to.order) {  // only extents of 1 are left on the other side
      for (; i < from.order; ++i)
        if (from[i] != 1) return false;
      for (; j < to.order; ++j)
        if (to[j] != 1) return false;
      f(i0, i, j0, j);
      return true;
    }
    index_t left = from[i++], right = to[j++];
    while (left != right) {
      const bool grow_left = i < from.order && (j == to.order || (i - i0 <= j - j0));
      if (grow_left) left = dims.multiply(left, from[i++]);
      else if (j < to.order) right = dims.multiply(right, to[j++]);
      else return false;
    }
    f(i0, i, j0, j);
  }
  return true;
}

/// The joined bits after a reshape from `from`, or -1 if it must copy.
constexpr int joined_after_reshape(symbol_table& dims, unsigned joined, const shape& from,
                                   const shape& to) {
  unsigned result = 0;
  bool legal = true;
  const bool grouped = for_each_group(dims, from, to, [&](int i0, int i1, int j0, int j1) {
    for (int i = i0; i + 1 < i1; ++i) legal = legal && (joined >> i & 1);
    for (int j = j0; j + 1 < j1; ++j) result |= 1u << j;
    if (j1 < to.order && i1 < from.order && i1 > 0 && j1 > 0 && (joined >> (i1 - 1) & 1))
      result |= 1u << (j1 - 1);
  });
  return grouped && legal ? static_cast<int>(result) : -1;
}

constexpr unsigned joined_after_permute(unsigned joined, const attributes& at) {
  unsigned result = 0;
  for (int i = 0; i + 1 < at.count; ++i) {
    const int d = normalized_dim(at[i], at.count), e = normalized_dim(at[i + 1], at.count);
    if (e == d + 1 && (joined >> d & 1)) result |= 1u << i;
  }
  return result;
}

/// Operands of a concat that are concats along the same dim are replaced by theirs.
constexpr void flatten_concat(const compute_graph& g, node& n) {
  int parts[2 * max_operands]{};
  int count = 0;
  for (int i = 0; i < n.operands; ++i) {
    const node& inner = g[n.operand[i]];
    const bool nested = inner.op == n.op && inner.at == n.at;
    for (int k = 0; k < (nested ? inner.operands : 1); ++k)
      parts[count++] = nested ? inner.operand[k] : n.operand[i];
  }
  if (count > max_operands) return;
  for (int i = 0; i < count; ++i) n.operand[i] = parts[i];
  n.operands = count;
}

}  // namespace detail

/// The node whose memory a reshape, or a reshape of one, looks at as a whole.
constexpr int reshaped_from(const compute_graph& g, int id) {
  while (g[id].op == &info_of<op::reshape>) id = g[id].operand[0];
  return id;
}

/// `g` in which every reshape can be read in place and every output is contiguous memory of its own, maybe reshaped.
constexpr compute_graph with_legal_views(compute_graph g) {
  for (int i = 0; i < g.size(); ++i)  // before it is known what is live: inner ones are not
    if (g[i].op == &info_of<op::concat>) detail::flatten_concat(g, g.nodes[i]);
  sequence<unsigned> joined;  // by node of the result
  const auto note = [&](compute_graph& to, int id, unsigned bits) {
    while (joined.size() < to.size())
      joined.push_back(all_joined(to[joined.size()].result.extents.order));
    joined[id] = bits;
    return id;
  };
  compute_graph result = rewritten(g, [&](compute_graph& to, node n) {
    if (n.op->kind != op::op_kind::view)
      return note(to, to.intern(n).id, all_joined(n.result.extents.order));
    if (to[n.operand[0]].op == &info_of<op::coordinate> ||
        to[n.operand[0]].op->kind == op::op_kind::constant)
      n.operand[0] = to.apply<op::contiguous>({}, value{&to, n.operand[0]}).id;
    note(to, n.operand[0], static_cast<int>(joined.size()) > n.operand[0]
                               ? joined[n.operand[0]]
                               : all_joined(to[n.operand[0]].result.extents.order));
    const shape from = to[n.operand[0]].result.extents;
    const unsigned bits = joined[n.operand[0]];
    if (n.op == &info_of<op::reshape>) {
      int after = detail::joined_after_reshape(to.dims, bits, from, n.result.extents);
      if (after < 0 && bits != all_joined(from.order)) {
        n.operand[0] = to.apply<op::contiguous>({}, value{&to, n.operand[0]}).id;
        note(to, n.operand[0], all_joined(from.order));
      }
      if (after < 0) after = static_cast<int>(all_joined(n.result.extents.order));
      return note(to, to.intern(n).id, static_cast<unsigned>(after));
    }
    unsigned after = 0;
    if (n.op == &info_of<op::permute>) after = detail::joined_after_permute(bits, n.at);
    if (n.op == &info_of<op::slice> && n.at[3] == 1 && n.at[0] >= 0) {
      const int dim = static_cast<int>(n.at[0]);  // only the dim before it stops running into it
      after = dim > 0 ? bits & ~(1u << (dim - 1)) : bits;
    }
    return note(to, to.intern(n).id, after);
  });
  sequence<bool> taken(result.size(), false);
  for (int& o : result.outputs) {
    if (o < 0) continue;
    const int base = reshaped_from(result, o);
    const node& n = result[base];
    const bool has_memory = n.op->kind != op::op_kind::view && n.op->kind != op::op_kind::leaf &&
                            n.op->kind != op::op_kind::constant && n.op != &info_of<op::coordinate>;
    if (has_memory && !taken[base]) {
      taken[base] = true;
      continue;
    }
    node copy;  // appended, not interned: each output owns its elements
    copy.op = &info_of<op::contiguous>;
    copy.result = result[o].result;
    copy.operand[0] = o;
    copy.operands = 1;
    o = result.append(copy).id;
  }
  return result;
}

}  // namespace weft::graph
