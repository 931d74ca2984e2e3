// SPDX-License-Identifier: MIT
// Definitions of <weft/placement/positions.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/placement/positions.hpp>

namespace weft {
namespace graph {
namespace detail {

/// Follows positions from the leaves of a graph to its result.
class position_walk {
 public:
  explicit position_walk(const position_view& g)
      : g_(g), where_(static_cast<int>(g.nodes.size()), placement{}), origin_(where_.size(), -1) {
    for (const symbol& s : g.symbols) dims_.symbols.push_back(s);
    for (const index_t s : g.same_as) dims_.same_as.push_back(s);
  }

  positions_dim run(std::span<const positions_dim> leaves) {
    for (int i = 0; i <= g_.result; ++i) where_[i] = placed_by_rule(i, leaves);
    const placement& p = where_[g_.result];
    if (p.kind == placed::sum) return sum_of_positions;
    if (!p.is_divided()) return no_positions;
    return static_cast<positions_dim>(p.dim + (p.groups == 1 && p.unit == 1 ? 0 : merged_positions));
  }

 private:
  static constexpr index_t unknown_groups = 0;

  const position_node& at(int i) const { return g_.nodes[static_cast<std::size_t>(i)]; }
  const placement& operand(const position_node& n, int k) const { return where_[n.operand[k]]; }
  bool is_sum(const position_node& n, int k) const { return operand(n, k).kind == placed::sum; }

  [[noreturn]] static void refuse_reading(const position_node& n) {
    refuse<usage_error>({"weft: context: ", n.name,
                         " reads along positions, of which this rank has a part (axis cp): attention "
                         "alone reads those of other ranks. Use a policy without cp"});
  }
  [[noreturn]] void refuse_sum(const position_node& n, int k) const {
    const int from = origin_[n.operand[k]];
    refuse<usage_error>(
        {"weft: context: ", from < 0 ? "a sum" : at(from).name,
         " over positions is that of this rank alone "
         "(axis cp), and ",
         n.name,
         " reads it as if it were of all: losses may depend on it linearly. "
         "sum_over_positions(sum(...)) is the sum over all ranks, a constant in backward; where it has a "
         "gradient, use a policy without cp"});
  }
  placement sum_made_by(int i) {
    origin_[i] = i;
    return {placed::sum};
  }
  placement sum_like(int i, int k) {
    origin_[i] = origin_[at(i).operand[k]];
    return {placed::sum};
  }

  placement placed_by_rule(int i, std::span<const positions_dim> leaves) {
    using enum position_rule;
    const position_node& n = at(i);
    if (n.rule == leaf) return placed_leaf(static_cast<std::size_t>(n.at[0]), leaves);
    int of_sum = -1, divided = -1;  // the first operands that are
    for (int k = n.operands; k-- > 0;) {
      if (is_sum(n, k)) of_sum = k;
      if (operand(n, k).is_divided()) divided = k;
    }
    if (of_sum >= 0 && n.rule != random) return with_sum(i, n, of_sum, divided);
    return divided < 0 ? placement{} : with_positions(i, n, divided);
  }
  static placement placed_leaf(std::size_t l, std::span<const positions_dim> leaves) {
    const positions_dim d = l < leaves.size() ? leaves[l] : no_positions;
    if (d == sum_of_positions) return {placed::sum};
    if (d == no_positions) return {};
    return d < merged_positions ? divided_along(d) : divided_along(d - merged_positions, unknown_groups);
  }

  /// Of a node that reads a sum over this rank's positions.
  placement with_sum(int i, const position_node& n, int k, int divided) {
    using enum position_rule;
    if (n.rule == all_ranks) return {};
    if (divided >= 0 || (n.learns && !passes_sum(n))) refuse_sum(n, k);
    return sum_like(i, k);
  }
  /// Whether the result is linear in the sums among its operands. A mean over what counts is a quotient of
  /// two.
  bool passes_sum(const position_node& n) const {
    using enum position_rule;
    int sums = 0;
    for (int k = 0; k < n.operands; ++k) sums += is_sum(n, k);
    switch (n.rule) {
      case product:
      case contraction: return sums == 1;
      case quotient: return is_sum(n, 0) || !at(n.operand[1]).learns;
      case choice: return !is_sum(n, 0);
      case rows: return !is_sum(n, 1);
      case formula:
      case extremum:
      case native:
      case attention: return false;
      default: return true;
    }
  }

  /// Of a node that reads positions and no sum over them.
  placement with_positions(int i, const position_node& n, int k) {
    using enum position_rule;
    const placement& p = operand(n, k);
    switch (n.rule) {
      case formula:
      case linear:
      case product:
      case quotient:
      case choice: return aligned(n);
      case sum:
      case extremum:
        if (p.dim < n.at[0] || p.dim >= n.at[1]) return p;
        if (n.rule == extremum) refuse_reading(n);
        return sum_made_by(i);
      case reshape: return reshaped(n, p);
      case permute: {
        int to = 0;
        while (normalized_dim(n.at[to], n.at.count) != p.dim) ++to;
        return divided_like(p, to, p.unit);
      }
      case along_dim:
        for (int o = 0; o < n.operands; ++o)
          if (operand(n, o).is_divided() && operand(n, o).dim == normalized_dim(n.at[0], n.extents.order))
            refuse_reading(n);
        return aligned(n);
      case unchanged: return p;
      case attention: return attended(n);
      case rows:
        if (operand(n, 1).is_divided()) return operand(n, 1);
        if (p.dim == 0) refuse_reading(n);
        return divided_like(p, p.dim - 1 + at(n.operand[1]).extents.order, p.unit);
      case result: return other_result(n, p);
      case all_ranks:
        refuse<usage_error>(
            {"weft: context: sum_over_positions adds up what ranks have, and these are elements at other "
             "positions on each: sum_over_positions(sum(...)), over the dim of positions"});
      default: return by_indices(i, n);
    }
  }
  /// Elements beside each other, aligned at the right.
  placement aligned(const position_node& n) const {
    placement found;
    for (int k = 0; k < n.operands; ++k) {
      const placement& p = operand(n, k);
      if (!p.is_divided()) continue;
      const int dim = p.dim + n.extents.order - at(n.operand[k]).extents.order;
      if (found.is_divided() && found.dim != dim) refuse_reading(n);
      found = divided_like(p, dim, p.unit);
    }
    return found;
  }
  placement reshaped(const position_node& n, const placement& p) {
    placement q;
    if (p.groups != unknown_groups &&
        reshaped_placement(dims_, at(n.operand[0]).extents, n.extents).follow(p, q))
      return q;
    return {};
  }
  placement attended(const position_node& n) const {
    for (int k = 0; k < 3; ++k)
      if (operand(n, k).is_divided() && operand(n, k).dim != 1) refuse_reading(n);
    return divided_along(1);
  }
  placement other_result(const position_node& n, const placement& p) const {
    const position_node& of = at(n.operand[0]);
    if (of.rule == position_rule::attention) return divided_along(n.extents.order == 3 ? 2 : 1);
    for (const shared_dim& d : indices_of(of))
      if (d.result[0] == p.dim) return divided_like(p, d.result[n.at[0]], p.unit);
    return {};
  }
  sequence<shared_dim> indices_of(const position_node& n) const {
    sequence<int> orders;
    for (int k = 0; k < n.operands; ++k) orders.push_back(at(n.operand[k]).extents.order);
    return n.divides ? divides_reader(n.divides, n.at, orders).read() : sequence<shared_dim>();
  }
  /// Products and native ops.
  placement by_indices(int i, const position_node& n) {
    const sequence<shared_dim> all = indices_of(n);
    int chosen = -1, from = -1;  // the index that counts positions, and an operand that has it
    for (int k = 0; k < n.operands; ++k) {
      if (!operand(n, k).is_divided()) continue;
      int d = 0;
      while (d < all.size() && all[d].operand[k] != operand(n, k).dim) ++d;
      if (d == all.size() || (chosen >= 0 && d != chosen)) refuse_reading(n);
      chosen = d;
      from = k;
    }
    const placement& p = operand(n, from);
    if (all[chosen].result[0] >= 0) return divided_like(p, all[chosen].result[0], p.unit);
    for (int k = 0; k < n.operands; ++k)  // weights that are learned are those of other positions, too
      if (all[chosen].operand[k] >= 0 && !operand(n, k).is_divided() && at(n.operand[k]).learns)
        refuse_reading(n);
    return sum_made_by(i);
  }

  const position_view& g_;
  symbol_table dims_;
  sequence<placement> where_;  // by node: whole if it has no positions, a sum of this rank's, or divided
  sequence<int> origin_;       // of sums: the node that has added up positions, -1 for operands
};

}  // namespace detail

WEFT_DEFINE positions_dim positions_of_result(const position_view& g, std::span<const positions_dim> leaves) {
  return detail::position_walk(g).run(leaves);
}

}  // namespace graph
}  // namespace weft
