// SPDX-License-Identifier: MIT
// Definitions of <weft/device/cpu/sort.hpp>.
#pragma once

#include <algorithm>

#include <weft/base/config.hpp>
#include <weft/device/cpu/sort.hpp>

namespace weft {
namespace cpu {
inline namespace WEFT_ISA {
namespace detail {

WEFT_DEFINE void sort_first(keyed* line, index_t size, index_t count) {
  if (count < size) std::partial_sort(line, line + count, line + size);
  else std::sort(line, line + size);
}

WEFT_DEFINE index_t line_offset(const strided& t, int dim, index_t before, index_t after) {
  return element_offset(t.extents, t.stride, 0, dim, before) +
         element_offset(t.extents, t.stride, dim + 1, t.extents.order, after);
}

}  // namespace detail

}  // namespace WEFT_ISA
}  // namespace cpu
}  // namespace weft
