// SPDX-License-Identifier: MIT
// Kernels of elements whose operands lie across their rows, as transposed ones do: computed in tiles, for which
// such operands are transposed in the first cache. Row by row, each element would take a line of a cache.
#pragma once

#include <weft/base/config.hpp>
#include <weft/device/kernel.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

/// How a kernel accesses its arguments.
struct argument_access {
  std::uint8_t bytes[max_arguments]{};  // of an element
  bool is_loaded[max_arguments]{};
};

/// Computes the range with `f` in tiles, if an operand is contiguous along another dim than the last and not
/// along that one. Rows are counted in an order that depends on `args` only: ranges of rows that cover the space
/// still do. `f` computes the elements of a range in any order.
bool run_in_tiles(const kernel_args& args, const kernel_range& range, const argument_access& access,
                  kernel_function f);

}  // namespace WEFT_ISA
}  // namespace weft::cpu

#ifndef WEFT_COMPILED
#include <weft/device/cpu/impl/tiled_elements.ipp>
#endif
