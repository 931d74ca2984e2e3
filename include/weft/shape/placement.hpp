// SPDX-License-Identifier: MIT
// Placements: which elements of a value a rank has when ranks divide layers among themselves (tensor
// parallelism); and the dim of a parameter that may be divided, which is part of the parameter's type.
//   placement p = divided_along(1, 3);          // of [C, 3 C]: a part of q, of k and of v
//   parameter<extents<In, Out>, float, divided::along<1>> weight;     // may be divided by columns
#pragma once

#include <string>

#include <weft/shape/attributes.hpp>

namespace weft {

/// Which part of a value a rank has. As torch's DTensor: Replicate, Shard, Partial("sum"), Partial("max").
enum class placed : std::uint8_t {
  whole,    // all elements
  divided,  // a part of one dim
  sum,      // a summand: the value is the sum over the ranks
  maximum   // the value is the largest over the ranks
};

/// A placement over the ranks that divide layers. If divided, dim `dim` consists of `groups` equal groups,
/// one after the other, and each rank has a part of every group, in whole units of `unit` indices; if the
/// number of ranks does not divide the number of units, the first ranks have one unit more. Groups and unit
/// are numbers, or symbols in a graph.
///
/// If there are more ranks than units, several consecutive ranks share each unit, one more of them for the
/// first units. They split the unit into `pieces` equal pieces, or each of them has the whole unit if
/// `pieces` is 0.
struct placement {
  placed kind = placed::whole;
  int dim = 0;
  index_t groups = 1, unit = 1;
  index_t pieces = 1;

  constexpr bool operator==(const placement&) const = default;
  constexpr bool is_divided() const { return kind == placed::divided; }
  constexpr bool is_partial() const { return kind == placed::sum || kind == placed::maximum; }
  /// Whether several ranks may have the same elements.
  constexpr bool is_shared() const { return pieces == 0; }
};

/// The placement of a value whose dim `dim` is divided.
constexpr placement divided_along(int dim, index_t groups = 1, index_t unit = 1, index_t pieces = 1) {
  return {placed::divided, dim, groups, unit, pieces};
}
/// The same division, applied to another dim, in which a unit has `unit` indices.
constexpr placement divided_like(const placement& p, int dim, index_t unit) {
  return divided_along(dim, p.groups, unit, p.pieces);
}

/// Which dims of a value count positions of which each rank has some (context parallelism), as bits: several
/// bits if positions are spread over several dims, or if it is not known which dim counts them. Or one of the
/// special values below.
using positions_dims = std::uint16_t;
inline constexpr positions_dims no_positions = 0;
inline constexpr positions_dims merged_positions = 1 << max_order;  // added if a dim also counts others
inline constexpr positions_dims sum_of_positions = 2 << max_order;  // made of sums over this rank's positions
inline constexpr positions_dims own_rows = 4 << max_order;  // added to row numbers within this rank's rows
inline constexpr positions_dims counted_from_zero = 8 << max_order;  // values 0, 1, ..., n - 1 on every rank
constexpr positions_dims positions_along(int dim) { return static_cast<positions_dims>(1 << dim); }

/// The number of the `units` that `rank` has, and the first of them.
constexpr index_t count_of_part(index_t units, index_t ranks, index_t rank) {
  return units / ranks + (rank < units % ranks);
}
constexpr index_t first_of_part(index_t units, index_t ranks, index_t rank) {
  const index_t more = units % ranks;
  return units / ranks * rank + (rank < more ? rank : more);
}
/// The first of the `units` that `rank` has or shares.
constexpr index_t unit_of_rank(index_t units, index_t ranks, index_t rank) {
  if (units == 0 || units >= ranks) return first_of_part(units, ranks, rank);
  const index_t more = ranks % units, each = ranks / units, of_larger = more * (each + 1);
  return rank < of_larger ? rank / (each + 1) : more + (rank - of_larger) / each;
}
/// The number of pieces that `rank` has, and the first of them, where each of the `units` has `pieces`;
/// counted in units if `pieces` is 0. See `placement`.
constexpr index_t count_of_part(index_t units, index_t ranks, index_t rank, index_t pieces) {
  const bool apart = units == 0 || units >= ranks;
  if (pieces == 0) return apart ? count_of_part(units, ranks, rank) : 1;
  if (apart || pieces == 1) return count_of_part(units, ranks, rank) * pieces;
  const index_t u = unit_of_rank(units, ranks, rank), first = first_of_part(ranks, units, u);
  return count_of_part(pieces, count_of_part(ranks, units, u), rank - first);
}
constexpr index_t first_of_part(index_t units, index_t ranks, index_t rank, index_t pieces) {
  const bool apart = units == 0 || units >= ranks;
  if (pieces == 0) return unit_of_rank(units, ranks, rank);
  if (apart || pieces == 1) return first_of_part(units, ranks, rank) * pieces;
  const index_t u = unit_of_rank(units, ranks, rank), first = first_of_part(ranks, units, u);
  return u * pieces + first_of_part(pieces, count_of_part(ranks, units, u), rank - first);
}

/// The indices that `rank` has within one group of `group` indices. The unit of `p` must divide `group`.
struct indices_of_part {
  index_t first = 0, count = 0;
};
constexpr indices_of_part indices_in_group(const placement& p, index_t group, index_t ranks, index_t rank) {
  const index_t units = group / p.unit, piece = p.unit / (p.is_shared() ? 1 : p.pieces);
  return {first_of_part(units, ranks, rank, p.pieces) * piece,
          count_of_part(units, ranks, rank, p.pieces) * piece};
}

/// The attributes of leaf `number` of a graph, which may be divided as `p`, and the functions that read them.
constexpr attributes leaf_attributes(index_t number, const placement& p) {
  if (!p.is_divided()) return {{number}, 1};
  return {{number, p.dim, p.groups, p.unit, p.pieces}, 5};
}
constexpr placement placement_of_leaf(const attributes& at) {
  return at.count > 1 ? divided_along(static_cast<int>(at[1]), at[2], at[3], at[4]) : placement{};
}

/// Where the elements of a part lie in the whole row-major tensor: rows of `count` elements, `stride` apart,
/// beginning at element `first`.
struct part_layout {
  index_t rows = 0, stride = 0, first = 0, count = 0;
};
/// The layout of the part that `rank` has. The groups and units of `p` must divide the dim.
constexpr part_layout layout_of_part(const shape& whole, const placement& p, index_t ranks, index_t rank) {
  index_t rows = p.groups, inner = 1;
  for (int d = 0; d < p.dim; ++d) rows *= whole[d];
  for (int d = p.dim + 1; d < whole.order; ++d) inner *= whole[d];
  const index_t group = whole[p.dim] / p.groups;
  const indices_of_part own = indices_in_group(p, group, ranks, rank);
  return {rows, group * inner, own.first * inner, own.count * inner};
}

/// For example "whole", "dim 1", "dim 1 in 3 groups", "dim 0 in units of 64", "dim 1 in units of 64, shared",
/// "dim 1 in units of 256 in 4 pieces", "sum". A number known only at run time prints as "?".
[[gnu::cold]] inline std::string to_string(const placement& p) {
  const auto number = [](index_t n) { return n < 0 ? std::string("?") : std::to_string(n); };
  if (!p.is_divided()) return p.kind == placed::whole ? "whole" : p.kind == placed::sum ? "sum" : "maximum";
  return "dim " + std::to_string(p.dim) + (p.groups == 1 ? "" : " in " + number(p.groups) + " groups") +
         (p.unit == 1 ? "" : " in units of " + number(p.unit)) +
         (p.pieces == 1   ? ""
          : p.is_shared() ? ", shared"
                          : " in " + number(p.pieces) + " pieces");
}

/// How ranks may divide parameters. A property of the model: it has no effect unless the policy divides
/// layers.
namespace divided {

/// Every rank has the whole parameter.
struct nowhere {
  static constexpr placement value{};
  template <int Outputs, int Inputs>
  using weight = nowhere;
  using bias = nowhere;
};

/// For `Pieces`: if there are more ranks than units, each rank has one whole unit, and several have the same.
inline constexpr index_t shared = 0;

/// Dim `Dim` of the parameter, in `Groups` groups and in units of `Unit` indices with `Pieces` pieces each:
/// see `placement`.
template <int Dim, index_t Groups = 1, index_t Unit = 1, index_t Pieces = 1>
struct along {
  static_assert(Dim >= 0 && Groups >= 1 && Unit >= 1 && Pieces >= 0,
                "weft: divided: the dim must be 0 or more, counted from the left, and groups and units 1 or "
                "more");
  static_assert(Pieces == shared || Unit % Pieces == 0, "weft: divided: pieces must divide a unit");
  static constexpr placement value = divided_along(Dim, Groups, Unit, Pieces);
};

/// Divides the outputs of a linear layer, so that each rank computes a part of every row of the result; the
/// layer that reads it is divided by `rows`. Groups: 3 if the outputs are queries, keys and values. Unit:
/// what must not be split, such as the features of a head. Megatron's column-parallel linear.
///
/// If g heads of queries with F features each read one head of keys and values: `columns<1, g * F, g>` for
/// queries, and `columns<1, F, shared>` for keys and for values. If there are more ranks than these heads,
/// each rank has one of them.
template <index_t Groups = 1, index_t Unit = 1, index_t Pieces = 1>
struct columns {
  template <int Outputs, int Inputs>
  using weight = along<Outputs, Groups, Unit, Pieces>;
  using bias = along<0, Groups, Unit, Pieces>;
};

/// Divides the inputs of a linear layer: the operand is divided in its last dim, and the result is a sum over
/// ranks. `rows<g * F, g>` follows attention with grouped queries. Megatron's row-parallel linear.
template <index_t Unit = 1, index_t Pieces = 1>
struct rows {
  static_assert(Pieces != shared,
                "weft: divided: the inputs of a layer divided by rows cannot be shared between ranks");
  template <int Outputs, int Inputs>
  using weight = along<Inputs, 1, Unit, Pieces>;
  using bias = nowhere;
};

/// Divides the rows of a table. A row is looked up on the rank that has it; in a product that gives logits,
/// every rank has some of the classes. Megatron's vocabulary-parallel embedding and head.
using vocabulary = along<0>;

}  // namespace divided

}  // namespace weft
