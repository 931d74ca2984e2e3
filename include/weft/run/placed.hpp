// SPDX-License-Identifier: MIT
// Values of which ranks hold parts between the programs of a tape, such as the activations of sequence
// parallelism.
//
// A program states for its result, and for each operand, whether a rank has a part of it: a dim of the result
// is then a symbol for this rank's part, and a leaf has its placement as attributes (placement/divider.hpp).
// An operand that arrives in another placement is cut or gathered before the program runs.
#pragma once

#include <weft/run/context.hpp>
#include <weft/run/program.hpp>

namespace weft::runtime {

/// Records that the result of a program is this rank's part, if so.
inline void note_division(const context& c, const plan_view& p, const symbol_values& symbols,
                          tensor_state& result) {
  if (c.layer_rank().ranks == 1) return;
  const shape& s = p.values[static_cast<std::size_t>(p.outputs[0])].result.extents;
  for (int d = 0; d < s.order; ++d) {
    if (!symbol_table::is_symbol(s[d])) continue;
    const symbol& own = p.symbols[static_cast<std::size_t>(symbol_table::number_of(s[d]))];
    if (own.kind != symbol_kind::part) continue;
    shape whole = result.extents;
    whole[d] = detail::number_of(symbols, own.a);
    result.divided = unnamed_division(whole, divided_along(d), c.layer_rank().ranks, c.layer_rank().rank);
    return;
  }
}

/// Replaces each operand that this rank has in a placement other than the one the program reads by
/// replace(operand, placement). Parameters are never gathered.
template <class Replace>
void place_operands(const context& c, const plan_view& p, const symbol_values& symbols, tensor_list& leaves,
                    Replace replace) {
  if (c.layer_rank().ranks == 1) return;
  for (const lower::value_entry& v : p.values) {
    if (v.where != lower::storage::leaf) continue;
    std::shared_ptr<tensor_state>& leaf = leaves[static_cast<std::size_t>(v.source)];
    const auto dim = static_cast<int>(v.at[1]);
    const bool reads_part =
        v.at.count > 1 && detail::number_of(symbols, v.result.extents[dim]) != leaf->whole()[dim];
    if (leaf->is_unnamed_part()) {
      const placement to = placement_of_leaf(v.at);
      if (!(leaf->divided->where == to)) leaf = replace(leaf, to);
    } else if (reads_part && !leaf->divided) {
      leaf = replace(leaf, placement_of_leaf(v.at));
    }
  }
}

/// `value` in another placement. Collective among the ranks that divide layers.
inline std::shared_ptr<tensor_state> placed(const context& c, const std::shared_ptr<tensor_state>& value,
                                            const placement& to) {
  if (value->where_in_layer() == to || !c.hooks()) return value;
  return c.hooks()->placed(value, to);
}

/// The dims of the result of a program, for these operands, along which other ranks hold other positions.
/// `known`: the earlier result, which is reused if nothing has changed. Throws usage_error
/// (placement/positions.hpp).
inline positions_dims positions_of_result(const context& c, positions_function f, const tensor_list& leaves,
                                          specialization::positions_found* known = nullptr) {
  if (!f || c.layer_rank().context_ranks == 1) return no_positions;
  specialization::positions_found now;
  bool any = false;
  for (const auto& leaf : leaves) {
    positions_dims mark = leaf ? leaf->positions : no_positions;
    if (mark == counted_from_zero && leaf->version() > 0) mark = no_positions;  // changed since
    now.of_leaves.push_back(mark);
    any = any || (mark != no_positions && mark != counted_from_zero);
  }
  if (!any) return no_positions;
  if (known && known->of_leaves == now.of_leaves) return known->of_result;
  now.of_result = f({now.of_leaves.data(), now.of_leaves.size()});
  if (known) *known = now;
  return now.of_result;
}

}  // namespace weft::runtime
