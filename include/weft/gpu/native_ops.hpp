// SPDX-License-Identifier: MIT
// The native ops of the library on devices that compile text: the table of their texts.
#pragma once

#include <algorithm>
#include <vector>

#include <weft/device/native.hpp>
#include <weft/gpu/attention_kernels.hpp>
#include <weft/gpu/index_add_texts.hpp>
#include <weft/gpu/look_up_texts.hpp>
#include <weft/gpu/merge_texts.hpp>
#include <weft/gpu/sort_texts.hpp>
#include <weft/gpu/window_texts.hpp>

namespace weft::gpu {

namespace detail {
/// Number of lines along dim v0 of the result.
inline index_t lines_of_result(const native_operands& o) {
  return o.out[0].size() / std::max<index_t>(o.out[0].extents[static_cast<int>(o.at[0])], 1);
}
/// A kernel whose items are lines along dim v0. `words`: definitions beside line_words.
inline native_text of_lines(const char* text, index_t lines, const std::string& words = {}) {
  return {text, lines, 0, line_words + words};
}
/// The same for running sums or products.
inline native_text of_running(const char* text, const native_operands& o) {
  const bool is_float = is_floating(o.out[0].type);
  return of_lines(text, lines_of_result(o), is_float ? running_number_words : running_integer_words);
}
/// The kernels that sum rows by index, sorted if there is scratch memory for it.
[[gnu::cold]] std::vector<native_text> index_add_texts(const native_operands& o, const group_limits& limits);
/// The kernels that sort lines, in chunks that are merged if they are long and there is scratch memory for
/// it.
[[gnu::cold]] std::vector<native_text> argsort_texts(const native_operands& o, const group_limits& limits);
}  // namespace detail

/// The kernels of a native op, in order: those of the library's op that it names, or its own; none if it has
/// no text. `limits`: those of the device.
[[gnu::cold]] std::vector<native_text> native_texts_of(const native_code& code, const native_operands& o,
                                                       const group_limits& limits);

}  // namespace weft::gpu

#ifndef WEFT_COMPILED
#include <weft/gpu/impl/native_ops.ipp>
#endif
