// SPDX-License-Identifier: MIT
// Definitions of <weft/placement/positions.hpp>.
#pragma once

#include <algorithm>
#include <bit>

#include <weft/base/config.hpp>
#include <weft/placement/positions.hpp>

namespace weft {
namespace graph {
namespace detail {

/// Where a value has positions.
struct position_place {
  placement p;             // a sum over this rank's positions, divided along one of `dims`, or whole if none
  unsigned dims = 0;       // the dims that may count positions, as bits
  bool is_folded = false;  // summed over some dims of positions: only a sum over the rest may read it

  static constexpr index_t unknown_groups = 0;

  bool is_sum() const { return p.kind == placed::sum; }
  explicit operator bool() const { return dims != 0; }
  bool has(int dim) const { return dims >> dim & 1; }
  /// Whether `p` states how its only dim counts positions.
  bool is_exact() const { return p.groups != unknown_groups; }

  static position_place at(const placement& p) { return {p, 1u << p.dim}; }
  static position_place among(unsigned dims) {
    return {divided_along(std::countr_zero(dims), unknown_groups), dims};
  }
  /// The same positions in other dims.
  position_place moved(unsigned to) const {
    return is_exact() ? at(divided_like(p, std::countr_zero(to), p.unit)) : among(to);
  }
};

/// Follows positions from the leaves of a graph to its result.
class position_walk {
 public:
  position_walk(const position_view& g, std::span<const positions_dims> leaves)
      : g_(g),
        leaves_(leaves),
        where_(static_cast<int>(g.nodes.size()), position_place{}),
        counted_(where_.size(), 0),
        origin_(where_.size(), -1) {
    for (const symbol& s : g.symbols) dims_.symbols.push_back(s);
    for (const index_t s : g.same_as) dims_.same_as.push_back(s);
    for (int i = 0; i < dims_.symbols.size(); ++i) unify_formula(i);
  }

  positions_dims run() {
    for (int i = 0; i <= g_.result; ++i) {
      counted_[i] = counted_dims(i);
      where_[i] = placed_by_rule(i);
    }
    const position_place& found = where_[g_.result];
    if (found.is_sum()) return sum_of_positions;
    if (!found) return no_positions;
    if (found.is_folded) refuse_reading(at(origin_[g_.result]));
    const bool simple = found.is_exact() && found.p.groups == 1 && found.p.unit == 1;
    return static_cast<positions_dims>(found.dims | (simple ? 0u : merged_positions));
  }

 private:
  /// Unifies symbol `i` with an earlier one that is the same formula of unified extents.
  void unify_formula(int i) {
    const index_t e = -2 - i;
    const symbol s = dims_.symbols[i] = dims_.formula(e);
    for (int j = 0; j < i && dims_.canonical(e) == e; ++j) {
      const symbol& t = dims_.symbols[j];
      const bool swapped = s.kind == symbol_kind::multiply && s.a == t.b && s.b == t.a;
      if (s.kind == t.kind && ((s.a == t.a && s.b == t.b) || swapped)) dims_.same_as[i] = -2 - j;
    }
  }

  const position_node& at(int i) const { return g_.nodes[static_cast<std::size_t>(i)]; }
  const position_place& operand(const position_node& n, int k) const { return where_[n.operand[k]]; }
  bool is_sum(const position_node& n, int k) const { return operand(n, k).is_sum(); }

  [[noreturn]] static void refuse_reading(const position_node& n) {
    refuse<usage_error>({"weft: context: ", n.name,
                         " reads along positions, of which this rank has only a part (axis cp): only "
                         "attention reads those of other ranks. Use a policy without cp"});
  }
  [[noreturn]] void refuse_sum(const position_node& n, int k) const {
    const int from = origin_[n.operand[k]];
    refuse<usage_error>({"weft: context: ", from < 0 ? "a sum" : at(from).name,
                         " over positions covers only those of this rank (axis cp), but ", n.name,
                         " reads it as if it covered all: losses may depend on it only linearly. "
                         "sum_over_positions(sum(...)) is the sum over all ranks, but a constant in "
                         "backward; where it needs a gradient, use a policy without cp"});
  }
  [[noreturn]] void refuse_counted(const position_node& n, int k) const {
    refuse<usage_error>({"weft: context: ", n.name, " reads an operand of shape ", at(n.operand[k]).extents,
                         " that counts positions from 0 on every rank, together with the positions of this "
                         "rank (axis cp): pass own.positions(), as in wpe(own.positions())"});
  }
  position_place sum_made_by(int i) {
    origin_[i] = i;
    return {{placed::sum}, 0};
  }
  position_place sum_like(int i, int k) {
    origin_[i] = origin_[at(i).operand[k]];
    return {{placed::sum}, 0};
  }

  /// The dims, as bits, along which a value without positions is the same on every rank but varies with the
  /// index: dims of parameters, of coordinates and of values computed from them.
  unsigned counted_dims(int i) {
    using enum position_rule;
    const position_node& n = at(i);
    const auto proper = [&](unsigned dims) {
      for (int d = 0; d < n.extents.order; ++d)
        if (n.extents[d] == 1) dims &= ~(1u << d);
      return dims & ((1u << n.extents.order) - 1);
    };
    const auto counted = [&](int k) { return counted_[n.operand[k]]; };
    unsigned dims = 0;
    switch (n.rule) {
      case source: return proper(~0u);
      case leaf: return n.is_parameter || leaf_positions(n) == counted_from_zero ? proper(~0u) : 0;
      case reshape:
        for (int d = 0; d < at(n.operand[0]).extents.order; ++d)
          if (counted(0) >> d & 1)
            dims |= reshaped_placement(dims_, at(n.operand[0]).extents, n.extents).beside(d);
        return dims;
      case permute:
        for (int d = 0; d < n.at.count; ++d)
          if (counted(0) >> normalized_dim(n.at[d], n.at.count) & 1) dims |= 1u << d;
        return dims;
      case contraction:
      case native:
      case linear_native:
      case random:
      case rows:
      case attention:
        for (const shared_dim& d : indices_of(n))
          for (int k = 0; k < n.operands && d.result[0] >= 0; ++k)
            if (d.operand[k] >= 0 && counted(k) >> d.operand[k] & 1) dims |= 1u << d.result[0];
        return dims;
      case unchanged: return counted(0);
      case result: return 0;
      default:
        for (int k = 0; k < n.operands; ++k) dims |= counted(k) << more_dims(n, k);
        return proper(dims);
    }
  }

  position_place placed_by_rule(int i) {
    using enum position_rule;
    const position_node& n = at(i);
    if (n.rule == leaf) return placed_leaf(leaf_positions(n));
    int of_sum = -1, divided = -1;  // the first operands that are a sum, and that have positions
    for (int k = n.operands; k-- > 0;) {
      if (is_sum(n, k)) of_sum = k;
      if (operand(n, k)) divided = k;
    }
    if (of_sum >= 0 && n.rule != random) return with_sum(i, n, of_sum, divided);
    return divided < 0 ? position_place{} : with_positions(i, n, divided);
  }
  positions_dims leaf_positions(const position_node& leaf) const {
    const auto number = static_cast<std::size_t>(leaf.at[0]);
    return number < leaves_.size() ? leaves_[number] : no_positions;
  }
  static position_place placed_leaf(positions_dims d) {
    if (d == sum_of_positions) return {{placed::sum}, 0};
    if (d == no_positions || d == counted_from_zero) return {};
    const unsigned dims = d & (merged_positions - 1u);
    return !(d & merged_positions) && std::has_single_bit(dims)
               ? position_place::at(divided_along(std::countr_zero(dims)))
               : position_place::among(dims);
  }

  /// The place of a node that reads a sum over this rank's positions.
  position_place with_sum(int i, const position_node& n, int k, int divided) {
    using enum position_rule;
    if (n.rule == all_ranks) return {};
    if (divided >= 0 || (n.learns && !passes_sum(n))) refuse_sum(n, k);
    return sum_like(i, k);
  }
  /// Whether the result is linear in the sums among its operands. A mean over the elements that count is a
  /// quotient of two sums, where the divisor has no derivative.
  bool passes_sum(const position_node& n) const {
    using enum position_rule;
    int sums = 0;
    for (int k = 0; k < n.operands; ++k) sums += is_sum(n, k);
    switch (n.rule) {
      case product:
      case contraction: return sums == 1;
      case quotient: return is_sum(n, 0) && !(is_sum(n, 1) && at(n.operand[1]).learns);
      case choice: return !is_sum(n, 0);
      case rows: return !is_sum(n, 1);
      case formula:
      case extremum:
      case native:
      case attention: return false;
      default: return true;
    }
  }

  /// The place of a node that reads positions and no sum over them.
  position_place with_positions(int i, const position_node& n, int k) {
    using enum position_rule;
    const position_place& p = operand(n, k);
    for (int o = 0; o < n.operands; ++o)
      if (operand(n, o).is_folded && n.rule != sum && n.rule != reshape)
        refuse_reading(at(origin_[n.operand[o]]));
    switch (n.rule) {
      case formula:
      case linear:
      case product:
      case quotient:
      case choice: return aligned(n);
      case sum:
      case extremum: return folded(i, n, p);
      case reshape: return reshaped(i, n, p);
      case permute: {
        unsigned to = 0;
        for (int d = 0; d < n.at.count; ++d)
          if (p.has(normalized_dim(n.at[d], n.at.count))) to |= 1u << d;
        return p.moved(to);
      }
      case along_dim:
        for (int o = 0; o < n.operands; ++o)
          if (operand(n, o).has(normalized_dim(n.at[0], n.extents.order))) refuse_reading(n);
        return aligned(n);
      case unchanged: return p;
      case attention: return attended(n);
      case rows: return looked_up(n);
      case result: return other_result(n, p);
      case all_ranks:
        refuse<usage_error>(
            {"weft: context: sum_over_positions adds up the values of all ranks, but these elements are at "
             "different positions on each rank: write sum_over_positions(sum(...)), over the dim of "
             "positions"});
      default: return by_indices(i, n);
    }
  }
  /// The positions of both `found` and `p`, which are in one of `dims`.
  static position_place both(const position_node& n, const position_place& found, const position_place& p,
                             unsigned dims) {
    if (!found) return p.moved(dims);
    if (!(found.dims & dims)) refuse_reading(n);
    return found.is_exact() ? found : p.is_exact() ? p.moved(dims) : position_place::among(found.dims & dims);
  }
  int more_dims(const position_node& n, int k) const {
    return n.extents.order - at(n.operand[k]).extents.order;
  }
  /// Element-wise ops, whose operands are aligned at the right.
  position_place aligned(const position_node& n) const {
    position_place found;
    for (int k = 0; k < n.operands; ++k)
      if (const position_place& p = operand(n, k)) found = both(n, found, p, p.dims << more_dims(n, k));
    for (int k = 0; k < n.operands; ++k)
      if (!operand(n, k) && (counted_[n.operand[k]] << more_dims(n, k) & found.dims)) refuse_counted(n, k);
    return found;
  }
  /// Rows, at positions, of a table that every rank has; or rows of a table whose columns are positions.
  position_place looked_up(const position_node& n) const {
    const position_place &table = operand(n, 0), &index = operand(n, 1);
    if (!table || (index && counts_own_rows(n.operand[1]))) return index;
    if (index || table.has(0)) refuse_reading(n);
    return table.moved(table.dims >> 1 << at(n.operand[1]).extents.order);
  }
  /// Whether a value consists of indices of this rank's rows, such as those of rows sent to experts.
  bool counts_own_rows(int i) const {
    while (at(i).operands == 1) i = at(i).operand[0];
    return at(i).rule == position_rule::leaf && leaf_positions(at(i)) & own_rows;
  }
  /// A sum over all dims that have positions, or over some of them.
  position_place folded(int i, const position_node& n, const position_place& p) {
    const unsigned dims = p.dims & ((1u << n.at[1]) - (1u << n.at[0]));
    if (dims && n.rule == position_rule::extremum) refuse_reading(n);
    if (dims == p.dims) return sum_made_by(i);
    origin_[i] = p.is_folded ? origin_[n.operand[0]] : i;
    return dims ? position_place{position_place::among(p.dims & ~dims).p, p.dims & ~dims, true} : p;
  }
  /// Places positions in a dim that holds all of them, otherwise in any of the dims made from theirs.
  position_place reshaped(int i, const position_node& n, const position_place& p) {
    origin_[i] = origin_[n.operand[0]];
    reshaped_placement to(dims_, at(n.operand[0]).extents, n.extents);
    placement q;
    if (p.is_exact() && to.follow(p.p, q) && to.holds_units()) return position_place::at(q);
    unsigned dims = 0;
    for (int d = 0; d < at(n.operand[0]).extents.order; ++d)
      if (p.has(d)) dims |= to.beside(d);
    position_place found = position_place::among(dims ? dims : (1u << n.extents.order) - 1);
    found.is_folded = p.is_folded;
    return found;
  }
  position_place attended(const position_node& n) const {
    for (int k = 0; k < 3; ++k) {  // a number of positions other than this rank's is refused at run time
      if (operand(n, k) && !operand(n, k).has(1)) refuse_reading(n);
      if (!operand(n, k) && counted_[n.operand[k]] >> 1 & 1) refuse_counted(n, k);
    }
    return position_place::at(divided_along(1));
  }
  position_place other_result(const position_node& n, const position_place& p) const {
    const position_node& of = at(n.operand[0]);
    if (of.rule == position_rule::attention)
      return position_place::at(divided_along(n.extents.order == 3 ? 2 : 1));
    unsigned dims = 0;
    for (const shared_dim& d : indices_of(of))
      if (d.result[0] >= 0 && p.has(d.result[0]) && d.result[n.at[0]] >= 0) dims |= 1u << d.result[n.at[0]];
    return dims ? p.moved(dims) : position_place{};
  }
  sequence<shared_dim> indices_of(const position_node& n) const {
    sequence<int> orders;
    for (int k = 0; k < n.operands; ++k) orders.push_back(at(n.operand[k]).extents.order);
    return n.divides ? divides_reader(n.divides, n.at, orders).read() : sequence<shared_dim>();
  }
  /// Products and native ops.
  position_place by_indices(int i, const position_node& n) {
    const sequence<shared_dim> all = indices_of(n);
    position_place found;  // its dims are indices into `all`
    for (int k = 0; k < n.operands; ++k) {
      const position_place& p = operand(n, k);
      unsigned indices = 0;
      int known = 0;
      for (int d = 0; d < all.size(); ++d)
        if (all[d].operand[k] >= 0 && p.has(all[d].operand[k])) indices |= 1u << d, ++known;
      if (known != std::popcount(p.dims)) refuse_reading(n);
      if (p) found = both(n, found, p, indices);
    }
    unsigned to = 0, summed = 0;
    for (int d = 0; d < all.size(); ++d)
      if (found.has(d)) (all[d].result[0] >= 0 ? to : summed) |= 1u << std::max(all[d].result[0], 0);
    if (to && summed) refuse_reading(n);
    for (int d = 0; d < all.size(); ++d)
      for (int k = 0; k < n.operands; ++k) {
        if (!found.has(d) || all[d].operand[k] < 0 || operand(n, k)) continue;
        if (summed && at(n.operand[k]).learns) refuse_reading(n);  // e.g. weights of other positions
        if (counted_[n.operand[k]] >> all[d].operand[k] & 1) refuse_counted(n, k);
      }
    if (to) return found.moved(to);
    return sum_made_by(i);
  }

  const position_view& g_;
  std::span<const positions_dims> leaves_;
  symbol_table dims_;
  sequence<position_place> where_;  // by node
  sequence<unsigned> counted_;      // by node: counted_dims
  sequence<int> origin_;            // of sums: the node that has summed over positions, -1 for operands
};

}  // namespace detail

WEFT_DEFINE positions_dims positions_of_result(const position_view& g,
                                               std::span<const positions_dims> leaves) {
  return detail::position_walk(g, leaves).run();
}

}  // namespace graph
}  // namespace weft
