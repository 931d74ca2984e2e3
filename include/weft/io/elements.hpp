// SPDX-License-Identifier: MIT
// Elements of files that are not row-major or not little-endian.
#pragma once

#include <cstddef>

#include <weft/shape/shape.hpp>

namespace weft::io {

/// Strides of an array, counted in elements: the element at indices i is at the sum of i[d] * of[d].
struct element_strides {
  index_t of[max_order]{};
};

/// Strides of elements in row-major order, the last index fastest; zeros if there are no elements.
element_strides row_major(const shape& extents);
/// Strides of elements in Fortran order, the first index fastest; zeros if there are no elements.
element_strides column_major(const shape& extents);

/// Whether elements with these strides are in row-major order without gaps.
bool is_row_major(const shape& extents, const element_strides& strides);

/// Copies the elements of `size` bytes, 1, 2, 4 or 8, from their places to row-major order.
void copy_row_major(const char* from, const shape& extents, const element_strides& strides, index_t size,
                    char* to);

/// Reverses the bytes of each element of `size` bytes: from big-endian to little-endian.
void reverse_elements(char* elements, std::size_t bytes, index_t size);

}  // namespace weft::io

#ifndef WEFT_COMPILED
#include <weft/io/impl/elements.ipp>
#endif
