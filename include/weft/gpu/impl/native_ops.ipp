// SPDX-License-Identifier: MIT
// Definitions of <weft/gpu/native_ops.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/device/sorted_lines.hpp>
#include <weft/device/sorted_rows.hpp>
#include <weft/gpu/native_ops.hpp>

namespace weft {
namespace gpu {
namespace detail {

WEFT_DEFINE std::vector<native_text> index_add_texts(const native_operands& o, const group_limits& limits) {
  const sorted_rows by(o);
  if (by.columns == 0) return {{checked_sum_row_text, by.count}};
  std::vector<native_text> texts;
  if (!o.out[0].adds) texts.push_back({zero_text, o.out[0].size()});
  if (!o.scratch || !by.sorts()) {
    texts.push_back({index_add_text, by.columns});
    return texts;
  }
  const std::string words =
      weft::detail::joined({"#define CHUNK ", sorted_rows::chunk, "\n#define TILE ", sorted_rows::tile,
                            "\n#define MERGED ", merged_by_item, "\n", sorted_keys_text});
  texts.push_back({sort_chunks_text, (by.count + sorted_rows::chunk - 1) / sorted_rows::chunk,
                   std::min(128, limits.threads), words});
  for (index_t pass = 0; pass < by.passes; ++pass)
    texts.push_back({merge_keys_text, (by.count + merged_by_item - 1) / merged_by_item, 0, words, 0, pass});
  texts.push_back({sum_tiles_text, by.tiles * by.columns, 0, words, 0, by.passes});
  if (by.tiles > 1) texts.push_back({join_tiles_text, by.tiles * by.columns, 0, words, 0, by.passes});
  return texts;
}

WEFT_DEFINE std::vector<native_text> argsort_texts(const native_operands& o, const group_limits& limits) {
  const sorted_lines by(o);
  if (!o.scratch || !by.sorts()) return {{argsort_text, o.in[0].size()}};
  const std::string words = weft::detail::joined({"#define CHUNK ", sorted_lines::chunk, "\n#define MERGED ",
                                                  positions_by_item, "\n", sorted_positions_text});
  std::vector<native_text> texts{
      {sort_line_chunks_text, by.lines * by.chunks, std::min(128, limits.threads), words}};
  const index_t items = by.lines * ((by.length + positions_by_item - 1) / positions_by_item);
  for (index_t pass = 0; pass < by.passes; ++pass)
    texts.push_back({merge_positions_text, items, 0, words, 0, pass});
  texts.push_back({store_positions_text, o.out[0].size(), 0, words, 0, by.passes});
  return texts;
}

}  // namespace detail

WEFT_DEFINE std::vector<native_text> native_texts_of(const native_code& code, const native_operands& o,
                                                     const group_limits& limits) {
  const index_t elements = o.out.empty() ? 0 : o.out[0].size();
  switch (code.op) {
    case native_op::checked_index: return {{checked_index_text, elements}};
    case native_op::index_select:
      if (elements == 0) return {{checked_row_text, o.in[1].size()}};
      return {{index_select_text, elements}};
    case native_op::index_add: return detail::index_add_texts(o, limits);
    case native_op::gather: return {{gather_text, elements}};
    case native_op::scatter_sum:
      if (elements == 0) return {{checked_scatter_text, o.in[0].size()}};
      return {detail::of_lines(scatter_sum_text, detail::lines_of_result(o))};
    case native_op::arg_extremum: return {detail::of_lines(arg_extremum_text, elements)};
    case native_op::argsort: return detail::argsort_texts(o, limits);
    case native_op::cumsum: return {detail::of_running(cumsum_text, o)};
    case native_op::fold_windows: return {{fold_windows_text, elements}};
    case native_op::arg_window_max: return {{arg_window_max_text, elements}};
    case native_op::depthwise_conv2d: return {{depthwise_conv2d_text, elements}};
    case native_op::depthwise_weight_gradient:
      return {{depthwise_weight_gradient_text, elements, group_size}};
    case native_op::cumprod: return {detail::of_running(cumprod_text, o)};
    case native_op::linear_recurrence: return {detail::of_running(linear_recurrence_text, o)};
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
