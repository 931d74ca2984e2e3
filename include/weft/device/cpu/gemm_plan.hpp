// SPDX-License-Identifier: MIT
// How a product is divided into blocks; depends only on sizes, strides and cache sizes.
//
//   MR x NR   a tile of C in registers: blocking::tile_rows x panel_columns, at most tile_columns
//   KC        part: of K, so that a tile of A stays in the first-level cache
//   MC        block_rows: of A, so that a block stays in the second-level cache
//
// The letters are those of BLIS (Van Zee and van de Geijn, 2015).
#pragma once

#include <algorithm>
#include <utility>

#include <weft/device/cpu/micro_kernel.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {
namespace detail {

constexpr index_t quotient_up(index_t all, index_t part) { return (all + part - 1) / part; }

/// The division of one product of operands of type From. K is counted in packed elements (pairs of bf16).
template <class From>
class gemm_plan {
 public:
  using T = typename packing<From>::type;
  using B = blocking<T>;
  static constexpr index_t elements = elements_in<T>;  // of K in a packed one

  /// Replaces the operands by those of the transpose if the transpose is what is computed.
  [[gnu::noinline]] gemm_plan(const gemm_size& product, matrix<From>& a, matrix<From>& b)
      : transposed(is_better_transposed(product, a, b)), size(product) {
    if (transposed) {
      std::swap(size.m, size.n);
      a = std::exchange(b, a.transposed()).transposed();
    }
    const bool by_column = a.row == 1 && a.column != 1;
    depth = quotient_up(size.k, elements);
    part = part_of_depth(depth, by_column);
    a_in_place = can_read_in_place(size, a);
    layout = by_column    ? tile_layout{1, packed_column, packed_column * part}
             : a_in_place ? tile_layout{a.row / elements, 1, B::tile_rows * a.row / elements}
                          : tile_layout{part + B::lanes, 1, B::tile_rows * (part + B::lanes)};
    panel_columns = columns_of_panel(size.n);
    block_rows = rows_of_block(part * (by_column ? packed_column : B::tile_rows));
    whole_rows = 3 * block_rows;
  }

  bool transposed;        // C^T = B^T A^T is computed
  gemm_size size;         // of what is computed
  index_t depth, part;    // K, and KC
  index_t block_rows;     // MC
  index_t whole_rows;  // up to which A is one block, and tasks pack the columns of B they read
  index_t panel_columns;  // NR, or less so that all panels have the same width
  tile_layout layout;     // of packed tiles of A, or of A
  bool a_in_place;        // A is not packed

 private:
  /// A B^T with at most half as many rows as columns is computed as the transpose of B A^T, so that the
  /// smaller operand is transposed and the larger one can be read in place.
  static bool is_better_transposed(const gemm_size& size, const matrix<From>& a, const matrix<From>& b) {
    return a.column == 1 && b.row == 1 && b.column != 1 && 2 * size.m <= size.n;
  }

  /// Equal parts of K, such that a tile fits the first-level cache.
  static index_t part_of_depth(index_t depth, bool by_column) {
    const index_t deepest = by_column ? B::depth * B::tile_rows / packed_column : B::depth;
    const index_t parts = std::max<index_t>(quotient_up(depth, deepest), 1);
    const index_t part = std::max<index_t>(quotient_up(depth, parts), 1);
    return parts > 1 ? quotient_up(part, B::lanes) * B::lanes : part;
  }

  /// Contiguous rows of whole packed elements, unless they all map to the same cache sets.
  static bool can_read_in_place(const gemm_size& size, const matrix<From>& a) {
    return !a.is_merged() && sizeof(T) == elements * sizeof(From) && a.column == 1 &&
           size.k % elements == 0 && a.row % elements == 0 &&
           reinterpret_cast<std::uintptr_t>(a.data) % sizeof(T) == 0 &&
           a.row * static_cast<index_t>(sizeof(From)) % 4096 != 0;
  }

  static index_t columns_of_panel(index_t columns) {
    const index_t vectors = quotient_up(columns, B::lanes);
    return quotient_up(vectors, quotient_up(vectors, B::vectors)) * B::lanes;
  }

  static index_t rows_of_block(index_t tile_elements) {
    const index_t bytes = tile_elements * static_cast<index_t>(sizeof(T));
    return std::max<index_t>(second_cache() * 3 / 8 / bytes, 8) * B::tile_rows;
  }
};

}  // namespace detail
}  // namespace WEFT_ISA
}  // namespace weft::cpu
