// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/stage_evaluator.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/parallel/stage_evaluator.hpp>

namespace weft {
namespace parallel {
namespace detail {

WEFT_DEFINE std::shared_ptr<tensor_state> absent_value(const tensor_state& t) {
  auto state = make_recycled<tensor_state>(t.where, t.extents, t.type, buffer());
  division of = t.divided ? *t.divided : division{{}, t.extents};
  of.name = "of another stage of the pipeline";
  state->divided = std::make_shared<division>(std::move(of));
  state->positions = t.positions;
  return state;
}

WEFT_DEFINE std::shared_ptr<tensor_state> absent_result(const context& c, const runtime::plan_view& p,
                                                        runtime::positions_function positions,
                                                        const runtime::operands& o) {
  const runtime::symbol_values symbols = runtime::resolve_symbols(p, o.leaves, o.sizes, c.layer_rank());
  const tensor_spec& result = p.values[static_cast<std::size_t>(p.outputs[0])].result;
  shape s = result.extents;
  for (int d = 0; d < s.order; ++d) s[d] = runtime::detail::number_of(symbols, s[d]);
  tensor_state value(c.where(), s, result.type, buffer());
  runtime::note_division(c, p, symbols, value);
  value.positions = runtime::positions_of_result(c, positions, o.leaves);
  return absent_value(value);
}

WEFT_DEFINE void refuse_absent(const tensor_state& value, index_t blocks) {
  refuse<usage_error>(
      {"weft: pipeline: the program after ", blocks, " blocks reads a value of shape ",
       to_string(value.extents),
       " that another stage computes: values pass from one block to the next only; compute it "
       "again there, or pass it through the blocks"});
}

}  // namespace detail
}  // namespace parallel
}  // namespace weft
