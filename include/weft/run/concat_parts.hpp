// SPDX-License-Identifier: MIT
// Parts of a concat that are computed directly in its result, so that the concat does not copy them: for
// example the cotangents of queries, keys and values that one linear map has computed, which are the parts of
// the cotangent of its result.
//
//   place_concat_parts(plan, layouts, elided);    // changes the layouts of these parts
//   elided[part]                                  // the result of the concat
#pragma once

#include <weft/device/native.hpp>
#include <weft/run/merged_operand.hpp>

namespace weft::runtime {

namespace detail {

/// How many times the steps of a program read the memory of value `base`.
constexpr int reads_of(const lower::plan_view& p, int base) {
  int reads = 0;
  for (const lower::step_entry& s : p.steps)
    for (int k = 0; k < s.inputs; ++k)
      reads += lower::base_of(p, p.operands[static_cast<std::size_t>(s.first_operand + k)]) == base;
  return reads;
}

/// Whether a step computes value `id` with any strides, and it is not an output of the program.
constexpr bool has_free_strides(const lower::plan_view& p, int id) {
  if (p.values[static_cast<std::size_t>(id)].output >= 0) return false;
  for (const lower::step_entry& s : p.steps) {
    if (s.kind != lower::step_kind::native || !s.native->any_result_strides) continue;
    for (int k = s.inputs; k < s.inputs + s.outputs; ++k)
      if (p.operands[static_cast<std::size_t>(s.first_operand + k)] == id) return true;
  }
  return false;
}

}  // namespace detail

/// Places in the result of a concat what can be computed there: results of native ops with any strides, read
/// only by this concat, with all elements in order. `layouts`: one per value.
constexpr void place_concat_parts(const lower::plan_view& p, sequence<layout>& layouts,
                                  elided_copies& elided) {
  symbol_table numbers;  // without symbols: all extents are known
  for (const lower::step_entry& s : p.steps) {
    if (s.kind != lower::step_kind::concat) continue;
    const auto operand = [&](int k) { return p.operands[static_cast<std::size_t>(s.first_operand + k)]; };
    const int result = operand(s.inputs);
    const int dim = normalized_dim(s.at[0], layouts[result].extents.order);
    index_t start = 0;
    for (int k = 0; k < s.inputs; ++k) {
      const layout& read = layouts[operand(k)];
      layout place = layouts[result];
      place.extents = read.extents;
      place.offset += start * place.stride[dim].times;
      start += read.extents[dim];
      const int part = lower::base_of(p, operand(k));
      if (!is_empty(read.extents) && read.extents.size() == layouts[part].extents.size() &&
          is_contiguous(numbers, read) && detail::has_free_strides(p, part) &&
          detail::reads_of(p, part) == 1 && make_reshape(numbers, layouts[part].extents, place)) {
        layouts[part] = place;
        elided[part] = result;
      }
    }
  }
}

}  // namespace weft::runtime
