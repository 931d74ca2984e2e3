// SPDX-License-Identifier: MIT
// Computes sharded graphs for several ranks in one process, in double: each rank's ops with
// tests/unit/graph/interpret.hpp, and the collectives by their definition. Sharding and gathering of values
// are implemented here independently of the library.
#pragma once

#include <weft/placement/place.hpp>

#include "../graph/interpret.hpp"

namespace weft::test {

/// The values of all nodes of a sharded graph, by node and rank.
using rank_values = std::vector<std::vector<array>>;

/// A placement whose sizes are numbers.
struct division_of {
  bool divided = false;
  std::size_t dim = 0;
  index_t groups = 1, unit = 1, pieces = 1;  // 0 pieces: several ranks have the same units
};

/// The indices of a dim of `extent` that `rank` has, in the rank's order.
inline std::vector<index_t> own_indices(index_t extent, const division_of& d, index_t ranks, index_t rank) {
  std::vector<index_t> own;
  const index_t group = extent / d.groups, piece = d.unit / std::max<index_t>(d.pieces, 1);
  const own_pieces range(group / d.unit, d.pieces, ranks, rank);
  for (index_t g = 0; g < d.groups; ++g)
    for (index_t i = range.first * piece; i < (range.first + range.count) * piece; ++i)
      own.push_back(g * group + i);
  return own;
}
inline array part(const array& whole, const division_of& d, index_t ranks, index_t rank) {
  if (!d.divided) return whole;
  const std::vector<index_t> own = own_indices(whole.extents[d.dim], d, ranks, rank);
  std::vector<index_t> extents = whole.extents;
  extents[d.dim] = static_cast<index_t>(own.size());
  return filled(extents, [&](position p) {
    p[d.dim] = own[static_cast<std::size_t>(p[d.dim])];
    return element(whole, p);
  });
}

/// A sharded graph on several ranks, with the leaves, numbers and sizes of the whole.
class divided_program {
 public:
  divided_program(const graph::placed_graph& of, const given_values& whole, index_t ranks) : of_(of) {
    for (index_t r = 0; r < ranks; ++r) {
      ranks_.push_back(whole);
      ranks_.back().ranks = ranks;
      ranks_.back().rank = r;
    }
  }

  division_of division(const placement& p) const {
    return {p.is_divided(), static_cast<std::size_t>(p.dim), resolved(of_.graph.dims, p.groups, ranks_[0]),
            resolved(of_.graph.dims, p.unit, ranks_[0]), p.pieces};
  }
  /// The part of a whole value that a rank has under `p`.
  array part_of(const array& whole, const placement& p, index_t rank) const {
    return part(whole, division(p), static_cast<index_t>(ranks_.size()), rank);
  }

  /// The gradient of a leaf with placement `p`, whose value on each rank is `of`: the sum over the ranks that
  /// have the same part.
  array gradient(const std::vector<array>& of, const array& whole, const placement& p, index_t rank) const {
    const auto ranks = static_cast<index_t>(ranks_.size());
    array sum = of[static_cast<std::size_t>(rank)];
    if (!p.is_divided() || p.pieces != 0) return sum;
    const auto indices = [&](index_t r) {
      return own_indices(whole.extents[static_cast<std::size_t>(p.dim)], division(p), ranks, r);
    };
    for (index_t r = 0; r < ranks; ++r)
      if (r != rank && indices(r) == indices(rank))
        for (std::size_t k = 0; k < sum.at.size(); ++k) sum.at[k] += of[static_cast<std::size_t>(r)].at[k];
    return sum;
  }

  /// Whether the parts match, as checked at run time, which refuses this number of ranks otherwise.
  bool fits() const {
    for (const given_values& v : ranks_)
      for (const extent_check& c : of_.graph.dims.checks)
        if ((c.kind == check_kind::equal || c.kind == check_kind::equal_in_broadcast) &&
            resolved(of_.graph.dims, c.a, v) != resolved(of_.graph.dims, c.b, v))
          return false;
    return true;
  }

  rank_values values() const {
    rank_values all;
    for (int i = 0; i < of_.graph.size(); ++i) all.push_back(values_of(i, all));
    return all;
  }

 private:
  std::vector<array> values_of(int i, const rank_values& known) const {
    const graph::node& n = of_.graph[i];
    if (graph::is_collective(n)) return exchanged(i, known[static_cast<std::size_t>(n.operand[0])]);
    std::vector<array> result;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const auto value_of = [&](int o) -> const array& { return known[static_cast<std::size_t>(o)][r]; };
      if (n.op == &graph::info_of<op::leaf>)
        result.push_back(part_of(ranks_[r].leaves.at(static_cast<std::size_t>(n.at[0])), of_.where[i],
                                 static_cast<index_t>(r)));
      else result.push_back(interpreted_node(of_.graph, n, value_of, ranks_[r]));
    }
    return result;
  }
  std::vector<array> exchanged(int i, const std::vector<array>& from) const {
    const graph::node& n = of_.graph[i];
    if (n.op == &graph::info_of<op::all_gather>) {
      std::vector<const array*> parts;
      std::vector<index_t> extents = from[0].extents;
      extents[0] = 0;
      for (const array& p : from) {
        parts.push_back(&p);
        extents[0] += p.extents[0];
      }
      return std::vector<array>(from.size(), detail::joined(parts, 0, extents));
    }
    array sum = from[0];
    for (std::size_t r = 1; r < from.size(); ++r)
      for (std::size_t k = 0; k < sum.at.size(); ++k)
        sum.at[k] = n.op == &graph::info_of<op::all_reduce> && n.at[0] ? std::max(sum.at[k], from[r].at[k])
                                                                       : sum.at[k] + from[r].at[k];
    std::vector<array> result(from.size(), sum);
    if (n.op == &graph::info_of<op::reduce_scatter>) {
      index_t first = 0;
      for (std::size_t r = 0; r < from.size(); ++r) {
        const index_t rows = resolved(of_.graph.dims, n.at[0], ranks_[r]);
        std::vector<index_t> extents = sum.extents;
        extents[0] = rows;
        result[r] = filled(extents, [&](position p) {
          p[0] += first;
          return element(sum, p);
        });
        first += rows;
      }
    }
    return result;
  }

  const graph::placed_graph& of_;
  std::vector<given_values> ranks_;
};

}  // namespace weft::test
