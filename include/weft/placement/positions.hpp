// SPDX-License-Identifier: MIT
// Tracks the positions of a sequence in the values of a program on ranks that divide positions: which dim
// counts them, and which op reads this rank's positions as if they were all.
//
// Attention reads the positions of all ranks. All other ops must compute each position independently, or sum
// over positions to a value on which the result depends linearly, as a loss does: the mean of such results
// over ranks is the result for all positions. Which operands have positions is known only at run time, so a
// short form of the graph is kept with the program and followed when the program first gets such operands.
//
// If an operand not known to have positions is combined with positions, it is assumed to belong to this
// rank's positions, as put together by the caller, unless it is computed only from parameters or coordinates:
// these are the same on every rank, so their first elements would belong to the first positions of the
// sequence.
//
//   positions_dims d = position_graph<Source>::of_result(operands);      // throws usage_error
#pragma once

#include <span>

#include <weft/graph/freeze.hpp>
#include <weft/graph/op_info.hpp>
#include <weft/op/attention.hpp>
#include <weft/op/positions.hpp>
#include <weft/placement/reshape.hpp>
#include <weft/placement/shared_dims.hpp>

namespace weft::graph {

/// How the result of a node depends on positions of its operands.
enum class position_rule : std::uint8_t {
  source,  // has no operands
  leaf,
  formula,  // element-wise
  linear,   // element-wise: a sum or a copy of operands
  product,  // element-wise
  quotient,
  choice,    // where
  sum,       // over dims
  extremum,  // over dims
  contraction,
  reshape,
  permute,
  along_dim,  // moves the elements of one dim
  unchanged,  // a slice that is all of the dim, windows of one element
  native,     // as its `divides` says
  linear_native,
  random,
  rows,  // of a table, by index
  attention,
  result,
  all_ranks  // sum_over_positions
};

/// A node of a graph in short form.
struct position_node {
  position_rule rule = position_rule::source;
  bool learns = false;        // needs a gradient
  bool is_parameter = false;  // is a leaf that is a parameter
  const char* name = "";
  const char* divides = nullptr;
  attributes at{};
  shape extents{};
  std::int16_t operand[max_operands]{};
  int operands = 0;
};

/// The forward part of a graph, up to the node `result`.
struct position_view {
  std::span<const position_node> nodes;
  std::span<const symbol> symbols;
  std::span<const index_t> same_as;
  int result;
};

/// Where the result has positions, if leaf l has them at `leaves`[l]. Throws usage_error, naming the op, if
/// an op reads positions as if this rank had all of them.
positions_dims positions_of_result(const position_view& g, std::span<const positions_dims> leaves);

namespace detail {

constexpr position_rule position_rule_of(const auto& g, const node& n) {
  using enum position_rule;
  const op_pointer op = n.op;
  if (op == &info_of<op::leaf>) return leaf;
  if (n.operands == 0) return source;
  if (op == &info_of<op::add> || op == &info_of<op::subtract> || op == &info_of<op::negate> ||
      op == &info_of<op::contiguous> || op == &info_of<op::expand> || op == &info_of<op::detach>)
    return linear;
  if (op == &info_of<op::cast>) return is_floating(n.result.type) ? linear : formula;
  if (op == &info_of<op::multiply>) return product;
  if (op == &info_of<op::divide>) return quotient;
  if (op == &info_of<op::where>) return choice;
  if (op == &info_of<op::reduce_sum>) return sum;
  if (op == &info_of<op::reshape>) return reshape;
  if (op == &info_of<op::permute>) return permute;
  if (op == &info_of<op::slice>) {
    const auto canonical = [&](index_t e) {
      while (symbol_table::is_symbol(e) && g.same_as[symbol_table::number_of(e)] != e)
        e = g.same_as[symbol_table::number_of(e)];
      return e;
    };
    const index_t extent = g.nodes[n.operand[0]].result.extents[static_cast<int>(n.at[0])];
    const bool whole = n.at[1] == 0 && n.at[3] == 1 && canonical(n.at[2]) == canonical(extent);
    return whole ? unchanged : along_dim;
  }
  constexpr index_t one = height_width(1).packed();
  if (op == &info_of<op::windows> && n.at[0] == one && n.at[1] == one) return unchanged;
  if (op == &info_of<op::flip> || op == &info_of<op::pad> || op == &info_of<op::concat>) return along_dim;
  if (op == &info_of<op::attention> || op == &info_of<op::attention_backward>) return attention;
  if (op == &info_of<op::sum_over_positions>) return all_ranks;
  if (op == &info_of<op::uniform_like>) return random;
  if (op == &info_of<op::index_select>) return rows;
  if (op == &info_of<op::tap> || op == &info_of<op::gather> || op == &info_of<op::index_add> ||
      op == &info_of<op::scatter_sum>)
    return linear_native;
  switch (n.op->kind) {
    case op::op_kind::reduce: return extremum;
    case op::op_kind::contraction: return contraction;
    case op::op_kind::result: return result;
    case op::op_kind::elementwise: return formula;
    default: return native;
  }
}

/// The name of an op as users know it.
constexpr const char* name_for_users(const node& n) {
  if (n.op == &info_of<op::reduce_sum>) return "sum or mean";
  if (n.op == &info_of<op::reduce_max>) return "amax or softmax";
  if (n.op == &info_of<op::reduce_min>) return "amin";
  if (n.op == &info_of<op::contract>) return "matmul";
  if (n.op == &info_of<op::windows>) return "a convolution or pooling";
  return n.op->name;
}

/// The nodes of a graph that a result reads, in short form, as a constant.
template <class Frozen>
class position_table {
  static constexpr auto& frozen_ = Frozen::frozen;
  static constexpr int size = frozen_.nodes.size();
  static constexpr int result = frozen_.outputs[0];
  struct numbering {
    fixed_table<std::int16_t, size> of;
    int count = 0;
  };
  /// By node: its number among those that the result reads, -1 for others.
  static constexpr numbering numbers_ = [] {
    numbering n;
    for (std::int16_t& i : n.of.data) i = -1;
    n.of.data[result] = 0;
    for (int i = result; i >= 0; --i)
      for (int k = 0; n.of.data[i] >= 0 && k < frozen_.nodes[i].operands; ++k)
        n.of.data[frozen_.nodes[i].operand[k]] = 0;
    for (std::int16_t& i : n.of.data)
      if (i >= 0) i = static_cast<std::int16_t>(n.count++);
    return n;
  }();

 public:
  static constexpr auto nodes = [] {
    fixed_table<position_node, numbers_.count> table;
    for (int i = 0; i <= result; ++i) {
      if (numbers_.of[i] < 0) continue;
      const node& n = frozen_.nodes[i];
      position_node& to = table.data[numbers_.of[i]];
      to = {position_rule_of(frozen_, n),
            n.needs_gradient,
            n.role == leaf_role::parameter,
            name_for_users(n),
            n.op->divides,
            n.at,
            n.result.extents,
            {},
            n.operands};
      for (int k = 0; k < n.operands; ++k) to.operand[k] = numbers_.of[n.operand[k]];
    }
    return table;
  }();
  static constexpr position_view view() {
    return {nodes.view(), frozen_.symbols.view(), frozen_.same_as.view(), numbers_.of[result]};
  }
};

}  // namespace detail

/// The positions in the graph Source::frozen.
template <class Source>
struct position_graph {
  static positions_dims of_result(std::span<const positions_dims> leaves) {
    return positions_of_result(detail::position_table<Source>::view(), leaves);
  }
};

}  // namespace weft::graph

#ifndef WEFT_COMPILED
#include <weft/placement/impl/positions.ipp>
#endif
