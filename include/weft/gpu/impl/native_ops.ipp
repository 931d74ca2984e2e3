// SPDX-License-Identifier: MIT
// Definitions of <weft/gpu/native_ops.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/gpu/native_ops.hpp>

namespace weft {
namespace gpu {

WEFT_DEFINE std::vector<native_text> native_texts_of(const native_code& code, const native_operands& o,
                                                     const group_limits& limits) {
  const index_t elements = o.out.empty() ? 0 : o.out[0].size();
  switch (code.op) {
    case native_op::checked_index: return {{checked_index_text, elements}};
    case native_op::index_select: return {{index_select_text, elements}};
    case native_op::index_add: return {{index_add_text, detail::columns_of_result(o)}};
    case native_op::gather: return {{gather_text, elements}};
    case native_op::scatter_sum: return {{scatter_sum_text, detail::lines_of_result(o)}};
    case native_op::arg_extremum: return {{arg_extremum_text, elements}};
    case native_op::argsort: return {{argsort_text, o.in[0].size()}};
    case native_op::cumsum: return {{cumsum_text, detail::lines_of_result(o)}};
    case native_op::uniform: return {{uniform_text, elements}};
    case native_op::checked_probability: return {{checked_probability_text, elements}};
    case native_op::attention: return attention_texts(o, limits);
    case native_op::merge_attention:
      return {{merge_results_text, elements}, {merge_log_sums_text, o.out[1].size()}};
    case native_op::add_positions: return {{add_positions_text, elements}};
    case native_op::attention_backward: return attention_backward_texts(o, limits);
    default: break;
  }
  if (!code.text) return {};
  return {{code.text, code.items ? code.items(o) : elements, code.threads}};
}

}  // namespace gpu
}  // namespace weft
