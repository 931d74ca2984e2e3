// SPDX-License-Identifier: MIT
// Copies that products make unnecessary: a device that multiplies merged operands (backend.hpp) reads the
// source of the copy directly, such as the image whose windows would be copied.
//
//   const elided_copies copied = find_elided_copies(plan, layouts);
//   copied[value]                               // the value that is read instead; -1: `value` itself
#pragma once

#include <algorithm>

#include <weft/device/native.hpp>
#include <weft/run/arena.hpp>
#include <weft/shape/layout.hpp>

namespace weft::runtime {

/// How an operand of a product is read from the source of its copy: the strides of a `strided`, and where its
/// rows and columns are.
struct merged_operand {
  bool possible = false;
  index_t stride[max_order]{};
  merged_dims dims{};
};

namespace detail {

/// The dims of `from` that correspond to one dim, with this extent and stride, of a view of its contiguous
/// copy. False if the indices of that dim do not correspond to whole dims of `from` or to parts that divide
/// them.
constexpr bool divide_dim(const layout& from, index_t extent, index_t stride, merged_dims::side& result) {
  merged_dims::side inner_first;
  index_t place = 1;  // the stride of dim d in the copy
  for (int d = from.extents.order; d-- > 0 && extent > 1; place *= from.extents[d]) {
    const index_t all = from.extents[d];
    if (stride >= place * all) continue;
    if (stride % place != 0) return false;
    const index_t step = stride / place, taken = std::min(extent, all / step);
    if (extent % taken != 0) return false;
    inner_first.extent[inner_first.order] = taken;
    inner_first.stride[inner_first.order++] = from.stride[d].times * step;
    extent /= taken;
    stride *= taken;
  }
  for (int d = inner_first.order; d-- > 0;) result.add_inner(inner_first.extent[d], inner_first.stride[d]);
  return extent == 1;
}

}  // namespace detail

/// How a product reads an operand, a view of a contiguous copy of `from`, directly from `from`.
constexpr merged_operand merge_operand(const layout& operand, const layout& from) {
  merged_operand m;
  const int order = operand.extents.order;
  if (operand.offset != 0 || is_empty(operand.extents) || !has_distinct_elements(operand)) return m;
  for (int d = 0; d < order; ++d) {
    const index_t extent = operand.extents[d], stride = operand.stride[d].times;
    if (stride < 0 || (stride == 0 && d >= order - 2 && extent > 1)) return m;
    merged_dims::side own, &side = d == order - 2 ? m.dims.rows : d == order - 1 ? m.dims.columns : own;
    if (stride != 0 && !detail::divide_dim(from, extent, stride, side)) return m;
    if (own.order > 1) return m;
    m.stride[d] = d >= order - 2 ? stride : own.order == 1 ? own.stride[0] : 0;
  }
  // Memory is read along the dim whose stride in the copy is 1, in whole cache lines.
  const bool along_rows = operand.stride[order - 1].times != 1;
  const merged_dims::side& line = along_rows ? m.dims.rows : m.dims.columns;
  constexpr index_t widest = 4;
  const index_t step = line.order == 0 ? 1 : line.stride[line.order - 1];
  m.possible = m.stride[along_rows ? order - 2 : order - 1] == 1 && step >= 1 && step <= widest;
  return m;
}

/// For values that have no memory of their own, because copies are not made: the value in whose memory they
/// are; -1 for all others. A copy is read from its source; a part of a concat is computed at its destination
/// (run/concat_parts.hpp).
using elided_copies = sequence<int>;

/// The copies of a program that repeat elements and that only products read, where these can read the source
/// of the copy directly. Other copies cost less than products that read their operands in pieces. `layouts`:
/// one per value.
constexpr elided_copies find_elided_copies(const lower::plan_view& p, const sequence<layout>& layouts) {
  elided_copies copied(static_cast<int>(p.values.size()), -1);
  const auto operand = [&](const lower::step_entry& s, int k) {
    return p.operands[static_cast<std::size_t>(s.first_operand + k)];
  };
  for (const lower::step_entry& copy : p.steps) {
    if (!copy.is_copy) continue;
    const int from = operand(copy, 0), made = operand(copy, 1);
    bool elided = p.values[static_cast<std::size_t>(made)].output < 0 &&
                  layouts[from].extents == layouts[made].extents && !has_distinct_elements(layouts[from]);
    for (const lower::step_entry& s : p.steps)
      for (int k = 0; k < s.inputs && elided; ++k)
        if (lower::base_of(p, operand(s, k)) == made)
          elided = s.kind == lower::step_kind::contraction && !s.in_slices &&
                   merge_operand(layouts[operand(s, k)], layouts[from]).possible;
    if (elided) copied[made] = from;
  }
  return copied;
}

/// The first and the last step that access the memory of value `id`, if the value has its own.
constexpr lifetime steps_of(const lower::plan_view& p, const elided_copies& elided, int id) {
  if (elided[id] >= 0) return {};
  const lower::value_entry& v = p.values[static_cast<std::size_t>(id)];
  lifetime steps{v.first_step, v.last_step};
  for (int other = 0; other < elided.size(); ++other)
    if (elided[other] >= 0 && lower::base_of(p, elided[other]) == id) {
      const lower::value_entry& within = p.values[static_cast<std::size_t>(other)];
      steps.first = std::min(steps.first, within.first_step);
      steps.last = std::max(steps.last, within.last_step);
    }
  return steps;
}

}  // namespace weft::runtime
