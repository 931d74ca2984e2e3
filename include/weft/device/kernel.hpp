// SPDX-License-Identifier: MIT
// How a fused kernel is called, on any device.
//
// The space of a kernel is `extent[0..order)`. The last dim is the row, the others count rows. A
// kernel that folds columns has its folded dims just before the last one.
#pragma once

#include <span>

#include <weft/base/dtype.hpp>
#include <weft/shape/shape.hpp>

namespace weft {

inline constexpr int max_arguments = 24;
inline constexpr int max_numbers = 16;

struct kernel_args {
  void* pointer[max_arguments];
  index_t stride[max_arguments][max_order];  // in elements, by dim of the space
  index_t extent[max_order];
  any_number number[max_numbers];
  int arguments = 0;
  int order = 1;
  int folded = 0;  // how many dims before the last are folded
  index_t row_size() const { return extent[order - 1]; }
  index_t rows() const {  // rows of the result when columns are folded
    index_t n = 1;
    for (int i = 0; i < order - 1 - folded; ++i) n *= extent[i];
    return n;
  }
};

/// A long row, or many rows that are folded, are computed by blocks: each sweep of the code over all
/// blocks, then what follows the sweeps. Between lie the folds of every block.
struct fold_blocks {
  int phase;             // the sweep to compute; the number of sweeps for what follows
  index_t block, count;  // this one, of so many
  void* folds;  // rows: 8 bytes for each block of each fold; columns: scratch_size units for each block
};

/// The part of the space that one call computes.
struct kernel_range {
  index_t row_begin, row_end;
  index_t begin, end;  // within a row
  void* scratch;  // scratch_size units for each scratch row of the code, or for the columns that are folded
  const fold_blocks* blocks = nullptr;
};

/// Scratch memory for a row of `size` elements, in units of 8 bytes: whole vectors of 64 bytes, which kernels
/// store without regard to where the row ends.
constexpr index_t scratch_size(index_t size) { return (size + 7) / 8 * 8; }

using kernel_function = void (*)(const kernel_args&, const kernel_range&);

/// What a kernel may divide among threads: any elements, whole rows, or rows and columns of what
/// it folds.
enum class kernel_division : std::uint8_t { elements, rows, columns };

/// A kernel in every form a device may want it in, with its arguments.
struct kernel_call {
  std::span<const std::uint64_t> instructions;  // canonical code, see lower/code.hpp
  kernel_function function = nullptr;    // the same compiled for this CPU
  kernel_division division{};
  int scratch_rows = 0;
  int sweeps = 0, folds = 0;  // of the code
  kernel_args args;
};

}  // namespace weft
