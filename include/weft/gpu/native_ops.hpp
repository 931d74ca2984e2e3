// SPDX-License-Identifier: MIT
// The native ops of the library on devices that compile text: the table of their texts.
#pragma once

#include <algorithm>

#include <weft/device/native.hpp>
#include <weft/gpu/attention_kernels.hpp>
#include <weft/gpu/look_up_texts.hpp>

namespace weft::gpu {

namespace detail {
/// Number of lines along dim v0 of the result.
inline index_t lines_of_result(const native_operands& o) {
  return o.out[0].size() / std::max<index_t>(o.out[0].extents[static_cast<int>(o.at[0])], 1);
}
/// Number of elements of a row of the result.
inline index_t columns_of_result(const native_operands& o) {
  return o.out[0].size() / std::max<index_t>(o.out[0].extents[0], 1);
}
}  // namespace detail

/// The kernels of a native op, in their order: those of the library's op that it names, or its own; none if
/// it has no text. `memory`: bytes that a group of threads of the device can share.
[[gnu::cold]] inline std::vector<native_text> native_texts_of(const native_code& code,
                                                              const native_operands& o, index_t memory) {
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
    case native_op::attention: return attention_texts(o, memory);
    case native_op::attention_backward: return attention_backward_texts(o, memory);
    default: break;
  }
  if (!code.text) return {};
  return {{code.text, code.items ? code.items(o) : elements, code.threads}};
}

}  // namespace weft::gpu
