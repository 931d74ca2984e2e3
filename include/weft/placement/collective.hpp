// SPDX-License-Identifier: MIT
// Collectives as ops of a divided program. Shapes are those of one rank. Values are gathered and scattered
// along dim 0 only; the pass permutes dims before and after.
#pragma once

#include <weft/graph/op_info.hpp>
#include <weft/op/rule.hpp>

namespace weft::op {

/// Base class of collectives, which the strategy's hooks execute (run/execution_hooks.hpp). They occur only
/// in graphs that are already differentiated, and have no derivative.
struct collective_rule : rule<1> {
  static constexpr auto kind = op_kind::native;
  static constexpr native_code code{.messages = exchange::in_place};
};

/// The sum over the ranks (v0 = 0), or the maximum (v0 = 1), on every rank.
struct all_reduce : collective_rule {
  static constexpr auto name = "all_reduce";
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    return {true, operands[0]};
  }
};

/// Base class of collectives that change the extent of dim 0 to v0; ranks have units of v1 rows, or v2 pieces
/// of such units (shape/placement.hpp).
struct rows_collective : collective_rule {
  static constexpr unsigned extents = 0b11;
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes& at, const tensor_spec* operands) {
    inferred result{operands[0].extents.order > 0, operands[0]};
    result.value.extents[0] = at[0];
    return result;
  }
};
/// The rows of all ranks, in the order of ranks, on every rank.
struct all_gather : rows_collective {
  static constexpr auto name = "all_gather";
  static constexpr native_code code{.messages = exchange::apart, .repeats = true};
};
/// This rank's rows of the sum over the ranks.
struct reduce_scatter : rows_collective {
  static constexpr auto name = "reduce_scatter";
  static constexpr native_code code{.messages = exchange::apart};
};

}  // namespace weft::op

namespace weft::graph {
/// Whether `n` exchanges messages with other ranks.
constexpr bool is_collective(const node& n) {
  return n.op == &info_of<op::all_reduce> || n.op == &info_of<op::all_gather> ||
         n.op == &info_of<op::reduce_scatter>;
}
}  // namespace weft::graph
