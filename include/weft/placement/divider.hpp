// SPDX-License-Identifier: MIT
// Builds the graph of one rank from the placements of all values.
//
// Every node becomes the same op on a rank's parts, with their extents. Look-ups in divided rows, random
// numbers and coordinates become formulas of ordinary ops that count from the rank's first index.
#pragma once

#include <weft/graph/rewrite.hpp>
#include <weft/placement/collective.hpp>
#include <weft/placement/placer.hpp>

namespace weft::graph {

/// A graph divided among ranks, as one rank computes it.
struct placed_graph {
  compute_graph graph;
  sequence<placement> where;  // by node of `graph`; nodes of a collective have that of its result
  placement result{};         // placement of the first output
  finding found{};            // if there is a mistake, `graph` is empty
};

namespace detail {

/// Builds the graph of one rank from placements.
class divider {
 public:
  constexpr divider(const compute_graph& g, const placer& p) : g_(g), p_(p), at_(g.size(), -1) {}

  constexpr void run(placed_graph& out, const sequence<placement>& leaves) {
    to_ = without_nodes(g_);
    to_.dims = p_.dims;
    for (int i = 0; i < g_.size(); ++i)
      if (p_.live[i]) {
        at_[i] = settled(divided_node(i), p_.made[i], p_.where[i]);
        note(p_.where[i]);
      }
    out.result = p_.result;
    for (int o = 0; o < g_.outputs.size(); ++o) {
      const int i = g_.outputs[o];
      if (i < 0) {
        to_.outputs.push_back(-1);
        continue;
      }
      const placement& wanted = o == 0 ? p_.result : leaves[o - 1];
      to_.outputs.push_back(as(i, wanted));
      note(wanted);
      unify(to_[to_.outputs.back()].result.extents, local(g_[i].result.extents, wanted));
    }
    out.graph = to_;
    out.where = where_;
  }

 private:
  struct known_part {
    int node;
    placement of;
    int is;
  };

  // ----- extents of one rank

  constexpr index_t local_extent(index_t e, const placement& p) {
    symbol_table& dims = to_.dims;
    const index_t units = dims.divide(e, dims.multiply(p.groups, p.unit));
    return dims.multiply(p.groups, dims.multiply(dims.part(units, p.pieces), piece(p)));
  }
  /// This rank's first index in a group of extent `group`.
  constexpr index_t first_index(index_t group, const placement& p) {
    symbol_table& dims = to_.dims;
    return dims.multiply(dims.part_first(dims.divide(group, p.unit), p.pieces), piece(p));
  }
  /// The number of indices that are not divided further: those of a piece, or of a unit that ranks share.
  constexpr index_t piece(const placement& p) {
    return p.pieces > 1 ? to_.dims.divide(p.unit, p.pieces) : p.unit;
  }
  constexpr shape local(shape s, const placement& p) {
    s = to_.dims.canonical(s);
    if (p.is_divided()) s[p.dim] = local_extent(s[p.dim], p);
    return s;
  }
  /// Unifies extents that must be equal, for parts of values that are divided in different units.
  constexpr void unify(const shape& a, const shape& b) {
    index_t same = 0;
    for (int d = 0; d < a.order; ++d) to_.dims.unify(a[d], b[d], same);
  }
  constexpr void note(const placement& p) {
    while (where_.size() < to_.size()) where_.push_back(p);
  }

  // ----- nodes

  constexpr int divided_node(int i) {
    const node& n = g_[i];
    if (n.op->arity == 0 && n.op->kind != op::op_kind::result) return source(i);
    if (n.op->kind == op::op_kind::result)
      return result_of({&to_, as(n.operand[0], p_.where[n.operand[0]])}, static_cast<int>(n.at[0])).id;
    if (n.op == &info_of<op::uniform_like>) return random_numbers(i);
    const sequence<placement>& p = p_.operands[i];
    const bool by_rows = n.op == &info_of<op::index_select> && p[0].is_divided() && p[0].dim == 0;
    if (by_rows) return looked_up(i);
    if (n.op == &info_of<op::index_add> && p_.made[i].is_divided() && p_.made[i].dim == 0) return added_up(i);
    value operands[max_operands]{};
    for (int k = 0; k < n.operands; ++k) operands[k] = {&to_, as(n.operand[k], p[k])};
    if (n.op->kind == op::op_kind::native) match_parts(n, p);
    return applied(n, attributes_of(i), operands);
  }
  /// Operands can have different extents for one index, as queries have several heads per key head: a rank's
  /// parts must have the same ratio, or, if several ranks share a unit, the numbers of units must be equal.
  constexpr void match_parts(const node& n, const sequence<placement>& p) {
    const auto extent = [&](int k) { return to_.dims.canonical(g_[n.operand[k]].result.extents[p[k].dim]); };
    int first = -1;
    index_t same = 0;
    for (int k = 0; k < n.operands; ++k) {
      if (!p[k].is_divided()) continue;
      if (first < 0) first = k;
      const index_t a = extent(first), b = extent(k);
      if (p[first].is_shared() || p[k].is_shared())
        to_.dims.unify(to_.dims.divide(a, p[first].unit), to_.dims.divide(b, p[k].unit), same);
      else if (k != first)
        to_.dims.unify(local_extent(a, p[first]),
                       to_.dims.multiply(local_extent(b, p[k]), to_.dims.divide(a, b)), same);
    }
  }
  constexpr int applied(const node& n, const attributes& at, value* operands) {
    return to_.apply(*n.op, to_.dims.canonical(at, n.op->extents), operands, n.operands).id;
  }
  constexpr int source(int i) {
    node n = g_[i];
    const placement& p = p_.made[i];
    n.result.extents = local(n.result.extents, p);
    if (n.op == &info_of<op::leaf> && p.is_divided()) n.at = leaf_attributes(n.at[0], p);
    const bool merges = n.op->kind == op::op_kind::constant && n.op != &info_of<op::argument>;
    return n.op == &info_of<op::coordinate> || merges ? to_.intern(n).id : to_.append(n).id;
  }
  /// The attributes of node `i` for the extents of one rank.
  constexpr attributes attributes_of(int i) {
    const node& n = g_[i];
    const placement& p = p_.made[i];
    if (n.op == &info_of<op::reshape> || n.op == &info_of<op::expand>)
      return extents_attributes(local(n.result.extents, p));
    attributes at = n.at;
    const bool bounds = n.op == &info_of<op::slice> || n.op == &info_of<op::pad>;
    if (!bounds || !p.is_divided() || p.dim != n.at[0]) return at;
    const placement& from = p_.operands[i][0];
    symbol_table& dims = to_.dims;
    const index_t whole = dims.divide(dims.canonical(g_[n.operand[0]].result.extents[p.dim]), from.groups);
    const index_t part = local_extent(whole, one_group(from));
    for (int k = 1; k <= 2; ++k) at[k] = dims.multiply(part, multiple_of(dims, n.at[k], whole));
    return at;
  }

  /// The random numbers of an element do not depend on the number of ranks: they are drawn for the whole
  /// value and cut.
  constexpr int random_numbers(int i) {
    const node& n = g_[i];
    value like = expand_to(to_.constant(0, n.result.type), to_.dims.canonical(n.result.extents));
    return part_of(to_.apply(*n.op, n.at, &like, 1), p_.made[i]).id;
  }
  /// Which indices are of rows that this rank has (`here`), and their local numbers (`row`), 0 for other
  /// indices.
  struct own_rows {
    value here, row;
  };
  constexpr own_rows rows_of(int index, index_t rows, const placement& p, index_t reader) {
    const attributes checked{{rows, reader}, 2};
    const value i = to_.apply<op::checked_index>(checked, value{&to_, index});
    const value first = to_.extent(first_index(rows, p), dtype::i32);
    const value row = i - first;
    const value here = logical_and(less_equal(to_.constant(0, dtype::i32), row),
                                   less(row, to_.extent(local_extent(rows, p), dtype::i32)));
    return {here, where(here, row, 0)};
  }
  static constexpr value beside(value here, const shape& like) {
    shape s = here.extents();
    while (s.order < like.order) s.append(1);
    return reshape_to(here, s);
  }
  /// The rows that this rank has, and zeros for others; the sum over ranks is the result.
  constexpr int looked_up(int i) {
    const node& n = g_[i];
    const sequence<placement>& p = p_.operands[i];
    const index_t rows = to_.dims.canonical(g_[n.operand[0]].result.extents[0]);
    const own_rows own = rows_of(as(n.operand[1], p[1]), rows, p[0], n.at[0]);
    const value x = to_.apply<op::index_select>(n.at, value{&to_, as(n.operand[0], p[0])}, own.row);
    return weft::where(beside(own.here, x.extents()), x, to_.constant(0, x.type())).id;
  }
  /// The sums of the rows that this rank has.
  constexpr int added_up(int i) {
    const node& n = g_[i];
    const sequence<placement>& p = p_.operands[i];
    const index_t rows = to_.dims.canonical(n.at[0]);
    const own_rows own = rows_of(as(n.operand[0], p[0]), rows, p_.made[i], n.at[1]);
    const value x{&to_, as(n.operand[1], p[1])};
    const value kept = weft::where(beside(own.here, x.extents()), x, to_.constant(0, x.type()));
    return to_.apply<op::index_add>(attributes{{local_extent(rows, p_.made[i]), n.at[1]}, 2}, own.row, kept)
        .id;
  }

  // ----- values in another placement

  /// Node `i` of the original graph, placed as `p`.
  constexpr int as(int i, const placement& p) {
    const placement& from = p_.where[i];
    if (p_.agree(from, p) || from.is_partial()) return at_[i];
    if (p.kind == placed::whole) return gathered_node(i);
    for (const known_part& k : parts_)
      if (k.node == i && p_.agree(k.of, p)) return k.is;
    const int is = from.is_divided() ? part_of({&to_, gathered_node(i)}, p).id : cut_node(i, p);
    note(p);
    parts_.push_back({i, p, is});
    return is;
  }
  /// The whole of node `i`, which is divided. Views are applied after the gather, so that one gather serves
  /// all of them.
  constexpr int gathered_node(int i) {
    const node& n = g_[i];
    if (!p_.where[i].is_divided()) return at_[i];
    if (n.op == &info_of<op::permute> || n.op == &info_of<op::reshape>) {
      value operand{&to_, gathered_node(n.operand[0])};
      note({});
      return applied(n, n.at, &operand);
    }
    return gathered({&to_, at_[i]}, to_.dims.canonical(n.result.extents), p_.where[i]).id;
  }
  /// The part of node `i`, which is whole; computed in parts if possible.
  constexpr int cut_node(int i, const placement& p) {
    const node& n = g_[i];
    if (n.op == &info_of<op::coordinate> && p.groups == 1) {
      const index_t e = to_.dims.canonical(n.result.extents[0]);
      const value own = to_.coordinate(local_extent(e, p), n.result.type);
      return (own + to_.extent(first_index(e, p), n.result.type)).id;
    }
    const bool aligned = n.op->kind == op::op_kind::elementwise || n.op == &info_of<op::expand>;
    if (!aligned || n.operands == 0) return part_of({&to_, at_[i]}, p).id;
    value operands[max_operands]{};
    for (int k = 0; k < n.operands; ++k) {
      const int o = n.operand[k];
      const placement q = aligned_placement(p, n.result.extents.order, g_[o].result.extents);
      operands[k] = {&to_, as(o, q)};
    }
    return applied(n, n.op == &info_of<op::expand> ? extents_attributes(local(n.result.extents, p)) : n.at,
                   operands);
  }

  /// Applies f(v, dim) with the groups of the divided dim, each of extent `group`, in a dim of their own.
  /// Defined before its callers, because clang does not evaluate a function template in a constant before its
  /// definition.
  template <class F>
  constexpr value in_groups(value v, const placement& p, index_t group, F f, const shape& result) {
    if (p.groups == 1) return f(v, p.dim);
    shape apart;
    for (int d = 0; d < v.extents().order; ++d) {
      if (d == p.dim) apart.append(p.groups);
      apart.append(d == p.dim ? group : v.extents()[d]);
    }
    return reshape_to(f(reshape_to(v, apart), p.dim + 1), result);
  }
  /// The part of a whole value.
  constexpr value part_of(value v, const placement& p) {
    if (!p.is_divided()) return v;
    const index_t e = to_.dims.canonical(v.extents()[p.dim]);
    const index_t group = to_.dims.divide(e, p.groups), first = first_index(group, p);
    const index_t part = local_extent(group, one_group(p));
    const auto cut = [&](value x, int dim) { return slice_of(x, dim, first, part); };
    return in_groups(v, p, group, cut, local(v.extents(), p));
  }
  /// `part` indices from `first`; a slice whose extent is known to be `part`.
  constexpr value slice_of(value x, int dim, index_t first, index_t part) {
    return slice_dim(x, dim, first, to_.dims.add(first, part));
  }
  static constexpr placement one_group(const placement& p) {
    return divided_along(p.dim, 1, p.unit, p.pieces);
  }
  /// Applies `Op` along `dim`; its attributes are the resulting extent of dim 0, the unit and its pieces.
  template <class Op>
  constexpr value along(value v, int dim, index_t extent, const placement& p) {
    attributes order;
    order.count = v.extents().order;
    for (int d = 0; d < order.count; ++d) order[d] = d == 0 ? dim : d <= dim ? d - 1 : d;
    attributes back = order;
    for (int d = 0; d < order.count; ++d) back[static_cast<int>(order[d])] = d;
    if (dim > 0) v = permute_dims(v, order);
    if (v.get().op->kind == op::op_kind::view) v = to_.apply<op::contiguous>({}, v);
    v = to_.apply<Op>(attributes{{extent, p.unit, p.pieces}, 3}, v);
    return dim > 0 ? permute_dims(v, back) : v;
  }
  /// The whole of a divided value.
  constexpr value gathered(value v, const shape& whole, const placement& p) {
    const index_t group = to_.dims.divide(whole[p.dim], p.groups);
    const index_t part = local_extent(group, one_group(p));
    const auto gather = [&](value x, int dim) { return along<op::all_gather>(x, dim, group, p); };
    return in_groups(v, p, part, gather, whole);
  }
  /// The sum or maximum over ranks of a partial value.
  constexpr int settled(int id, const placement& from, const placement& to) {
    value v{&to_, id};
    note(from);
    if (!from.is_partial() || to.is_partial()) return id;
    if (!to.is_divided()) {
      const attributes kind{{from.kind == placed::maximum}, 1};
      if (v.get().op->kind == op::op_kind::view) v = to_.apply<op::contiguous>({}, v);
      return to_.apply<op::all_reduce>(kind, v).id;
    }
    const index_t group = to_.dims.divide(to_.dims.canonical(v.extents()[to.dim]), to.groups);
    const index_t part = local_extent(group, one_group(to));
    const auto scatter = [&](value x, int dim) { return along<op::reduce_scatter>(x, dim, part, to); };
    return in_groups(v, to, group, scatter, local(v.extents(), to)).id;
  }

  const compute_graph& g_;
  const placer& p_;
  compute_graph to_;
  sequence<placement> where_;
  sequence<int> at_;  // by node of g_: the node in its placement
  sequence<known_part> parts_;
};

}  // namespace detail

}  // namespace weft::graph
