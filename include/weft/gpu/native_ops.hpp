// SPDX-License-Identifier: MIT
// The native ops of the library on devices that compile text: the table of their texts.
#pragma once

#include <algorithm>

#include <weft/device/native.hpp>
#include <weft/gpu/attention_text.hpp>
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
inline index_t elements_of_operand(const native_operands& o) { return o.in[0].size(); }
/// One item for each row of scores.
inline index_t rows_of_scores(const native_operands& o) {
  const shape& s = o.in[0].extents;
  return s[0] * s[1] * s[2];
}
/// The same, and then one for each key.
inline index_t rows_and_columns_of_scores(const native_operands& o) {
  const shape& s = o.in[1].extents;
  return rows_of_scores(o) + s[0] * s[1] * s[2];
}
}  // namespace detail

/// A text, and how many items compute it; null: one for each element of the first result.
struct native_text {
  const char* text = nullptr;
  index_t (*items)(const native_operands&) = nullptr;
};

/// The text of a native op: its own, or that of the library's op that it names; null if there is none.
inline native_text native_text_of(const native_code& code) {
  switch (code.op) {
    case native_op::checked_index: return {checked_index_text};
    case native_op::index_select: return {index_select_text};
    case native_op::index_add: return {index_add_text, &detail::columns_of_result};
    case native_op::gather: return {gather_text};
    case native_op::scatter_sum: return {scatter_sum_text, &detail::lines_of_result};
    case native_op::arg_extremum: return {arg_extremum_text};
    case native_op::argsort: return {argsort_text, &detail::elements_of_operand};
    case native_op::cumsum: return {cumsum_text, &detail::lines_of_result};
    case native_op::uniform: return {uniform_text};
    case native_op::checked_probability: return {checked_probability_text};
    case native_op::attention: return {attention_text, &detail::rows_of_scores};
    case native_op::attention_backward: return {attention_backward_text, &detail::rows_and_columns_of_scores};
    default: return {code.text, code.items};
  }
}

}  // namespace weft::gpu
