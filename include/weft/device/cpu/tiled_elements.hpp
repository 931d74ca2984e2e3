// SPDX-License-Identifier: MIT
// Kernels over elements whose operands are not read along the rows of their space, or whose rows are short.
//
// Reading an operand that lies across the rows, such as a transposed one, would take a cache line per
// element: it is transposed tile by tile in the first-level cache. Rows that are shorter than a vector, as in
// [n, 3], are computed as one row if results lie in memory without gaps; operands with gaps are copied first.
#pragma once

#include <weft/base/config.hpp>
#include <weft/device/kernel.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

/// How a kernel accesses its arguments.
struct argument_access {
  std::uint8_t bytes[max_arguments]{};  // of an element
  bool is_loaded[max_arguments]{};      // otherwise stored
};

/// Computes the range with `f` in tiles, if that is faster than row by row; returns false if nothing was
/// computed. Rows are counted in an order that depends only on `args`, so ranges of rows that cover the space
/// still do. `f` computes the elements of a range in any order.
bool run_in_tiles(const kernel_args& args, const kernel_range& range, const argument_access& access,
                  kernel_function f);

}  // namespace WEFT_ISA
}  // namespace weft::cpu

#ifndef WEFT_COMPILED
#include <weft/device/cpu/impl/tiled_elements.ipp>
#endif
