// SPDX-License-Identifier: MIT
// Kernels of elements whose operands are not read along the rows of their space, or whose rows are short.
//
// An operand that lies across the rows, as a transposed one does, would take a line of a cache for each
// element: it is transposed tile by tile in the first cache. Rows that are shorter than a vector, as of [n,
// 3], are computed as one row where results lie in memory without gaps; operands that do not are copied so
// that they do.
#pragma once

#include <weft/base/config.hpp>
#include <weft/device/kernel.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

/// How a kernel accesses its arguments.
struct argument_access {
  std::uint8_t bytes[max_arguments]{};  // of an element
  bool is_loaded[max_arguments]{};      // or else stored
};

/// Computes the range with `f` in tiles, if that is faster than row by row; false if nothing was computed.
/// Rows are counted in an order that depends on `args` only: ranges of rows that cover the space still do.
/// `f` computes the elements of a range in any order.
bool run_in_tiles(const kernel_args& args, const kernel_range& range, const argument_access& access,
                  kernel_function f);

}  // namespace WEFT_ISA
}  // namespace weft::cpu

#ifndef WEFT_COMPILED
#include <weft/device/cpu/impl/tiled_elements.ipp>
#endif
