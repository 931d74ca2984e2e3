// SPDX-License-Identifier: MIT
// Definitions of <weft/io/elements.hpp>.
#pragma once

#include <algorithm>
#include <cstring>

#include <weft/base/config.hpp>
#include <weft/io/elements.hpp>

namespace weft {
namespace io {
namespace detail {

template <std::size_t Size>
void copy_dim(const char* from, index_t at, const shape& extents, const element_strides& strides, int dim,
              char*& to) {
  if (dim >= std::min(extents.order, max_order)) {  // g++ does not know that an order is at most max_order
    std::memcpy(to, from + at * static_cast<index_t>(Size), Size);
    to += Size;
    return;
  }
  for (index_t i = 0; i < extents[dim]; ++i)
    copy_dim<Size>(from, at + i * strides.of[dim], extents, strides, dim + 1, to);
}

}  // namespace detail

WEFT_DEFINE element_strides row_major(const shape& extents) {
  element_strides strides;
  if (extents.size() == 0) return strides;
  index_t next = 1;
  for (int d = extents.order; d-- > 0; next *= extents[d]) strides.of[d] = next;
  return strides;
}

WEFT_DEFINE element_strides column_major(const shape& extents) {
  element_strides strides;
  if (extents.size() == 0) return strides;
  index_t next = 1;
  for (int d = 0; d < extents.order; next *= extents[d], ++d) strides.of[d] = next;
  return strides;
}

WEFT_DEFINE bool is_row_major(const shape& extents, const element_strides& strides) {
  if (extents.size() == 0) return true;
  const element_strides rows = row_major(extents);
  for (int d = 0; d < extents.order; ++d)
    if (extents[d] > 1 && strides.of[d] != rows.of[d]) return false;
  return true;
}

WEFT_DEFINE void copy_row_major(const char* from, const shape& extents, const element_strides& strides,
                                index_t size, char* to) {
  if (is_row_major(extents, strides)) {
    std::memcpy(to, from, static_cast<std::size_t>(extents.size() * size));
    return;
  }
  switch (size) {
    case 1: return detail::copy_dim<1>(from, 0, extents, strides, 0, to);
    case 2: return detail::copy_dim<2>(from, 0, extents, strides, 0, to);
    case 4: return detail::copy_dim<4>(from, 0, extents, strides, 0, to);
    default: return detail::copy_dim<8>(from, 0, extents, strides, 0, to);
  }
}

WEFT_DEFINE void reverse_elements(char* elements, std::size_t bytes, index_t size) {
  for (char* at = elements; at != elements + bytes; at += size) std::reverse(at, at + size);
}

}  // namespace io
}  // namespace weft
