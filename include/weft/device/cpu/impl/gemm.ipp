// SPDX-License-Identifier: MIT
// Definitions of <weft/device/cpu/gemm.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/device/cpu/gemm.hpp>

namespace weft {
namespace cpu {
inline namespace WEFT_ISA {
namespace detail {

WEFT_DEFINE task_grid::task_grid(const gemm_size& size, index_t products, index_t tile_rows,
                                 index_t tile_columns, double serial_work, int threads)
    : size_(size), products_(products), tile_rows_(tile_rows), tile_columns_(tile_columns) {
  double work = 2;
  for (const index_t n : {size.m, size.n, size.k, products}) work *= static_cast<double>(n);
  parallel_ = threads > 1 && work >= serial_work;
  const index_t wanted = !parallel_ ? 1
                                    : threads * (work > 4000 * serial_work  ? 4
                                                 : work > 400 * serial_work ? 2
                                                                            : 1);
  while (products * rows_ * columns_ < wanted) {
    const bool can_rows = size.m / rows_ >= 2 * tile_rows;
    const bool can_columns = size.n / columns_ >= 2 * tile_columns;
    if (!can_rows && !can_columns) break;
    const bool taller = size.m / rows_ >= size.n / columns_;
    (can_rows && (taller || !can_columns) ? rows_ : columns_) *= 2;
  }
}

WEFT_DEFINE block_range task_grid::block(index_t n) const {
  const index_t i = n % rows_, j = n / rows_;
  return {part_begin(size_.m, tile_rows_, i, rows_), part_begin(size_.m, tile_rows_, i + 1, rows_),
          part_begin(size_.n, tile_columns_, j, columns_),
          part_begin(size_.n, tile_columns_, j + 1, columns_)};
}

}  // namespace detail
}  // namespace WEFT_ISA
}  // namespace cpu
}  // namespace weft
