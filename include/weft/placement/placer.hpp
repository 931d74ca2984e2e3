// SPDX-License-Identifier: MIT
// Placements of all values of a graph, from those of its leaves.
//
// The joint graph of forward and backward pass is placed as one: collectives are inserted where placements
// change and are not differentiated. A sum over ranks is reduced (settled) where it is made if anything
// except a sum reads it, and the walk starts again there. Whole values that meet divided ones are cut: always
// in the backward pass and in the stream; elsewhere in the forward pass only parameters, data and rows of
// tables, because any other whole value is the output of a layer that was mistakenly left undivided.
#pragma once

#include <weft/placement/finding.hpp>
#include <weft/placement/partial.hpp>
#include <weft/placement/reshape.hpp>
#include <weft/placement/shared_dims.hpp>

namespace weft::graph {

/// The extents, numbers or symbols, that identify activations [batch, positions, ...] between the divided
/// layers (the stream); 0 positions if activations are whole. Megatron's sequence parallelism divides them by
/// positions.
struct stream_extents {
  index_t batch = 0, positions = 0;
};

namespace detail {

/// The placement of a value that a formula broadcasts to `to`, the placement of a result of `order` dims.
constexpr placement aligned_placement(const placement& to, int order, const shape& s) {
  const int dim = to.dim - (order - s.order);
  if (!to.is_divided() || dim < 0 || s[dim] == 1) return {};
  return divided_like(to, dim, to.unit);
}

class placer {
 public:
  /// `leaves`: placements by number of the leaf, without the seed of a joint graph.
  constexpr placer(const compute_graph& g, const sequence<placement>& leaves, const stream_extents& stream)
      : dims(g.dims),
        operands(g.size(), {}),
        made(g.size(), placement{}),
        where(g.size(), placement{}),
        live(live_nodes(g)),
        g_(g),
        leaves_(leaves),
        stream_(stream),
        settled_(g.size(), false),
        wanted_(g.size(), placement{}),
        is_given_(g.size(), false),
        is_cotangent_(g.size(), false),
        seed_(g.size()) {
    for (int i = 0; i < g.size() && g.outputs.size() > 1; ++i)
      if (is_seed(i)) seed_ = i;
    for (int i = 0; i < g.size(); ++i) {
      is_given_[i] = find_given(i);
      is_cotangent_[i] = find_cotangent(i);
    }
  }

  symbol_table dims;
  sequence<sequence<placement>> operands;  // by node: the placements in which it reads them
  sequence<placement> made, where;         // by node: as its op makes it; after sums are reduced
  sequence<bool> live;
  finding found{};
  placement result{};  // placement of the first output, for the programs that read it

  constexpr void run() {
    ask_for_parts();
    for (int i = 0; i < g_.size() && !found; ++i) {
      if (!live[i]) continue;
      const node& n = g_[i];
      sequence<placement> p;
      for (int k = 0; k < n.operands; ++k) p.push_back(where[n.operand[k]]);
      settle_first_ = -1;
      made[i] = where[i] = by_rule(i, p);
      operands[i] = p;
      if (settled_[i] && made[i].is_partial()) where[i] = settled_placement(i);
      if (settle_first_ < 0 && where[i].is_partial() && g_.outputs.contains(i)) settle(i);
      if (settle_first_ < 0) continue;
      found = {};
      settled_[settle_first_] = true;
      i = settle_first_ - 1;
    }
    result = placement_of_result();
    check_shared_gradients();
  }

  constexpr bool agree(const placement& a, const placement& b) const {
    return a.kind == b.kind && a.dim == b.dim && same(a.groups, b.groups) && a.is_shared() == b.is_shared();
  }

 private:
  constexpr const shape& extents(int i) const { return g_[i].result.extents; }
  constexpr bool same(index_t a, index_t b) const { return dims.canonical(a) == dims.canonical(b); }
  constexpr bool is_seed(int i) const {
    return g_[i].op == &info_of<op::leaf> && g_[i].at[0] == g_.leaves - 1 && g_.outputs.size() > 1;
  }
  constexpr placement wrong(int i, mistake kind, const placement& a, const placement& b = {}) {
    if (!found) found = {kind, g_[i].op, i, a, b};
    return {};
  }

  // ----- the stream between divided layers

  constexpr placement placement_in_stream(const shape& s) {
    if (stream_.positions == 0) return {};
    if (s.order >= 3 && s.last() != 1 && same(s[0], stream_.batch) && same(s[1], stream_.positions))
      return divided_along(1);
    if (s.order == 2 && same(s[0], dims.multiply(stream_.batch, stream_.positions)))
      return divided_along(0, stream_.batch);
    return {};
  }
  constexpr bool in_stream(int i, const placement& p) {
    if (stream_.positions == 0 || !p.is_divided() || p.pieces != 1) return false;
    const index_t e = extents(i)[p.dim];
    return p.groups == 1
               ? same(e, stream_.positions)
               : same(p.groups, stream_.batch) && same(e, dims.multiply(stream_.batch, stream_.positions));
  }
  /// Gathers the operands that are in the stream; other divided operands are a mistake.
  constexpr placement gathered(int i, sequence<placement>& p, mistake kind) {
    for (int k = 0; k < g_[i].operands; ++k) {
      if (p[k].is_divided() && !in_stream(g_[i].operand[k], p[k])) return wrong(i, kind, p[k]);
      p[k] = {};
    }
    return {};
  }

  /// The placement that the next program reads: the stream in parts if it is [batch, positions, ...],
  /// otherwise gathered.
  constexpr placement placement_of_result() {
    const int id = g_.outputs[0];
    return extents(id).order < 3 && in_stream(id, where[id]) ? placement{} : where[id];
  }

  // ----- sums over ranks

  constexpr void settle(int i) {
    if (settle_first_ < 0) settle_first_ = origin(i);
  }
  /// The node that made the summands which `i` passes on.
  constexpr int origin(int i) const {
    for (;;) {
      const node& n = g_[i];
      int partial = -1, count = 0;
      for (int k = 0; k < n.operands; ++k)
        if (operands[i].size() > k && operands[i][k].is_partial()) {
          ++count;
          partial = n.operand[k];
        }
      if (count != 1 || where[partial].kind == placed::whole) return i;
      i = partial;
    }
  }
  constexpr placement settled_placement(int i) {
    if (made[i].kind == placed::maximum || g_[i].op->kind == op::op_kind::reduce) return {};
    return placement_in_stream(extents(i));
  }
  // ----- one node

  constexpr placement by_rule(int i, sequence<placement>& p) {
    const node& n = g_[i];
    if (n.op == &info_of<op::leaf>)
      return is_seed(i) ? placement_of_result() : leaves_[static_cast<int>(n.at[0])];
    if (n.op->kind == op::op_kind::result) return other_result(i);
    for (int k = 0; k < n.operands; ++k) {
      if (!p[k].is_partial()) continue;
      if (passes_partial(g_, n, p)) return p[k];
      settle(n.operand[k]);
      return {};
    }
    if (n.operands > 0 && p[0].is_divided() && n.op == &info_of<op::reshape>) return reshape(i, p);
    if (moves_along_one(*n.op)) {
      const int dim = normalized_dim(n.at[0], n.result.extents.order);
      for (int k = 0; k < n.operands; ++k)
        if (p[k].is_divided() && p[k].dim == dim) return along_divided(i, p, dim);
    }
    return by_shared_dims(i, p);
  }

  constexpr placement other_result(int i) const {
    const int of = g_[i].operand[0];
    const auto k = static_cast<int>(g_[i].at[0]);
    if (!made[of].is_divided()) return made[of];
    for (const shared_dim& d : shared_dims(g_, of))
      if (d.result[0] == made[of].dim) {
        const placement& like = like_result(i, of, d.result[k], d);
        return divided_like(like, d.result[k], like.unit);
      }
    return {};
  }

  /// The placement that determines how dim `dim` of `i`, a further result of `of`, is divided: that of an
  /// operand with the same extent, because keys have fewer heads than queries.
  constexpr const placement& like_result(int i, int of, int dim, const shared_dim& d) const {
    for (int o = 0; o < g_[of].operands; ++o)
      if (d.operand[o] >= 0 && same(extents(g_[of].operand[o])[d.operand[o]], extents(i)[dim]))
        return operands[of][o];
    return made[of];
  }

  constexpr placement reshape(int i, sequence<placement>& p) {
    placement q;
    const bool follows = reshaped_placement(dims, extents(g_[i].operand[0]), extents(i)).follow(p[0], q);
    if (follows && !splits_positions(i, p[0], q)) return q;
    return gathered(i, p, mistake::lost_in_view);
  }

  /// Whether a reshape splits positions into several dims. Positions need not divide evenly, unlike heads, so
  /// rows of an image cannot be divided instead.
  constexpr bool splits_positions(int i, const placement& p, const placement& q) {
    const shape &from = extents(g_[i].operand[0]), &to = extents(i);
    if (to.order <= from.order || p.unit != 1 || !in_stream(g_[i].operand[0], p)) return false;
    for (int d = 0; d < from.order; ++d)
      if (d != p.dim && same(from[d], from[p.dim])) return false;  // the divided dim may be channels
    return !same(dims.divide(from[p.dim], p.groups), dims.divide(to[q.dim], q.groups));
  }

  /// A slice, pad, concat or flip of the divided dim: only whole groups stay divided.
  constexpr placement along_divided(int i, sequence<placement>& p, int dim) {
    const node& n = g_[i];
    const auto part = [&](int k) { return dims.divide(extents(n.operand[k])[dim], p[k].groups); };
    if (n.op == &info_of<op::concat>) {
      const bool alike = agree_but_groups(p[0], p[1]) && same(part(0), part(1));
      if (!alike) return wrong(i, mistake::divided_differently, p[0], p[1]);
      return divided_along(dim, dims.add(p[0].groups, p[1].groups), p[0].unit, p[0].pieces);
    }
    if (n.op == &info_of<op::flip>) return gathered(i, p, mistake::lost_in_view);
    const index_t first = multiple_of(dims, n.at[1], part(0)), last = multiple_of(dims, n.at[2], part(0));
    if (n.at[3] != 1 || first < 0 || last < 0) return gathered(i, p, mistake::lost_in_view);
    return divided_along(dim, n.op == &info_of<op::slice> ? last - first : last, p[0].unit, p[0].pieces);
  }
  constexpr bool agree_but_groups(const placement& a, const placement& b) const {
    return a.is_divided() && b.is_divided() && a.dim == b.dim && a.pieces == b.pieces;
  }

  constexpr placement by_shared_dims(int i, sequence<placement>& p) {
    const node& n = g_[i];
    bool any = wanted_[i].is_divided();
    for (int k = 0; k < n.operands; ++k)  // sums of all rows instead of a summand of a whole table
      if (adds_rows_as_wanted(i) && in_stream(n.operand[k], p[k])) p[k] = {};
    for (int k = 0; k < n.operands; ++k) any = any || p[k].is_divided();
    if (!any) return {};
    const sequence<shared_dim> all = shared_dims(g_, i);
    int from = -1, chosen = -1;  // the first divided operand, and the index along which it is divided
    for (int k = 0; k < n.operands; ++k) {
      if (!p[k].is_divided()) continue;
      int d = 0;
      while (d < all.size() && all[d].operand[k] != p[k].dim) ++d;
      if (d == all.size()) return gathered(i, p, mistake::dim_must_be_whole);
      const bool fits = from < 0 || (d == chosen && same(p[k].groups, p[from].groups));
      if (fits && (from < 0 || go_together(i, p, k, from))) {
        from = from < 0 ? k : from;
        chosen = d;
        continue;
      }
      const int whole = in_stream(n.operand[k], p[k]) ? k : in_stream(n.operand[from], p[from]) ? from : -1;
      if (whole < 0) return wrong(i, mistake::divided_differently, p[from], p[k]);
      p[whole] = {};  // products read the stream gathered
      return by_shared_dims(i, p);
    }
    if (from < 0) return as_wanted(i, p, all);
    return cut_others(i, p, all[chosen], p[from], in_stream(n.operand[from], p[from]));
  }

  /// Whether operands `a` and `b` of `i` can be divided as they are. Native ops may have operands in shared
  /// units, as keys are, if their number of units equals that of the others.
  constexpr bool go_together(int i, const sequence<placement>& p, int a, int b) {
    if (p[a].is_shared() == p[b].is_shared()) return true;
    const auto units = [&](int k) { return dims.divide(extents(g_[i].operand[k])[p[k].dim], p[k].unit); };
    const index_t x = dims.canonical(units(a)), y = dims.canonical(units(b));
    return g_[i].op->kind == op::op_kind::native && (x == y || x < 0 || y < 0);
  }

  /// Cuts whole operands along the divided index; returns the placement of the result. `of_stream`: whether
  /// the divided operand is the stream; then all whole operands are cut.
  constexpr placement cut_others(int i, sequence<placement>& p, const shared_dim& d, const placement& to,
                                 bool of_stream = false) {
    const node& n = g_[i];
    const bool tops = n.op == &info_of<op::reduce_max>, least = n.op == &info_of<op::reduce_min>;
    const bool rows_in_groups = n.op == &info_of<op::index_select> && to.groups != 1;
    if (d.result[0] < 0 && rows_in_groups) return gathered(i, p, mistake::dim_must_be_whole);
    if (d.result[0] < 0 && least) return gathered(i, p, mistake::dim_must_be_whole);
    if (d.result[0] < 0 && to.is_shared() && !is_cotangent_[i])
      return wrong(i, mistake::dim_must_be_whole, to);  // several ranks would add the same
    for (int k = 0; k < n.operands; ++k) {
      if (d.operand[k] < 0 || p[k].is_divided()) continue;
      if (i < seed_ && n.op->kind == op::op_kind::contraction && d.result[0] < 0)
        return of_stream ? gathered(i, p, mistake::contracted_with_whole)
                         : wrong(i, mistake::contracted_with_whole, p[0], p[1]);
      if (i < seed_ && !of_stream && !is_given_[n.operand[k]])
        return wrong(i, mistake::computed_whole, p[k], to);
      p[k] = divided_like(to, d.operand[k], to.unit);
    }
    if (d.result[0] < 0) return {tops ? placed::maximum : placed::sum};
    return divided_like(to, d.result[0], to.unit);
  }
  /// Whether a value is computed from parameters and data only; known for its operands.
  constexpr bool find_given(int i) const {
    const node& n = g_[i];
    if (!n.needs_gradient) return true;
    if (n.op == &info_of<op::leaf>) return n.role == leaf_role::parameter;
    const op::op_kind kind = n.op->kind;
    const bool rows = n.op == &info_of<op::index_select>;  // for example of a table of positions
    if (kind != op::op_kind::elementwise && kind != op::op_kind::view && !rows) return false;
    for (int k = 0; k < n.operands; ++k)
      if (!is_given_[n.operand[k]]) return false;
    return true;
  }

  // ----- values of which several ranks have the same elements
  //
  // Each of these ranks computes with different queries, so its cotangent of such a value is a summand, and,
  // because a backward pass is linear, so are the cotangents of everything that the value was computed from.
  // Sums over the elements of all ranks are therefore correct, and gradients of parameters are summed over
  // the ranks that have the same elements (parallel/data_parallel.hpp).

  /// Whether the value depends on the cotangent of the result; known for its operands.
  constexpr bool find_cotangent(int i) const {
    const node& n = g_[i];
    for (int k = 0; k < n.operands; ++k)
      if (is_seed(n.operand[k]) || is_cotangent_[n.operand[k]]) return true;
    return false;
  }
  /// A gradient in shared parts cannot be turned into the gradient of a whole parameter.
  constexpr void check_shared_gradients() {
    for (int o = 1; o < g_.outputs.size() && !found; ++o) {
      const int i = g_.outputs[o];
      if (i < 0 || where[i].is_shared() == leaves_[o - 1].is_shared()) continue;
      (void)wrong(i, mistake::divided_differently, where[i], leaves_[o - 1]);
    }
  }

  // ----- gradients of divided parameters are computed in parts

  constexpr void ask_for_parts() {
    for (int o = 1; o < g_.outputs.size(); ++o)
      if (g_.outputs[o] >= 0) wanted_[g_.outputs[o]] = leaves_[o - 1];
    for (int i = g_.size(); i-- > 0;) {
      const node& n = g_[i];
      if (!wanted_[i].is_divided()) continue;
      if (n.op == &info_of<op::add> || n.op == &info_of<op::cast>)
        for (int k = 0; k < n.operands; ++k)
          if (extents(n.operand[k]) == extents(i)) wanted_[n.operand[k]] = wanted_[i];
      if (n.op != &info_of<op::permute>) continue;
      wanted_[n.operand[0]] = wanted_[i];
      wanted_[n.operand[0]].dim = normalized_dim(n.at[wanted_[i].dim], n.at.count);
    }
  }
  constexpr bool adds_rows_as_wanted(int i) const {
    return g_[i].op == &info_of<op::index_add> && wanted_[i].is_divided() && wanted_[i].groups == 1;
  }
  /// Products, and sums of rows, of whole operands are computed in the parts that an output requires.
  constexpr placement as_wanted(int i, sequence<placement>& p, const sequence<shared_dim>& all) {
    const node& n = g_[i];
    if (n.op->kind != op::op_kind::contraction && !adds_rows_as_wanted(i)) return {};
    for (const shared_dim& d : all)
      if (d.result[0] == wanted_[i].dim) return cut_others(i, p, d, wanted_[i]);
    return {};
  }

  const compute_graph& g_;
  const sequence<placement>& leaves_;
  stream_extents stream_;
  sequence<bool> settled_;
  sequence<placement> wanted_;
  sequence<bool> is_given_, is_cotangent_;  // by node
  int seed_;               // nodes before it belong to the forward pass
  int settle_first_ = -1;  // the node whose sum must be reduced before the current node can be placed
};

}  // namespace detail
}  // namespace weft::graph
