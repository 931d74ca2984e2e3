// SPDX-License-Identifier: MIT
// The micro-kernel: computes a tile of C, kept in registers, along K.
#pragma once

#include <algorithm>
#include <utility>

#include <weft/device/cpu/packing.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {
namespace detail {

/// Tile and block sizes, derived from the number of registers and a first-level cache of 32 KiB.
template <class T>
struct blocking {
  static constexpr bool many = vector_registers == 32;
  static constexpr int lanes = packed_lanes<T>;
  static constexpr int vectors = many && sizeof(T) < 8 ? 3 : 2;  // of a row of the tile
  static constexpr int tile_rows = many ? 8 : 6;
  static constexpr int tile_columns = vectors * lanes;
  static constexpr int depth = 768 * 4 / static_cast<int>(sizeof(T));
};

/// A tile of C, Rows by Vectors. A[i][k] is a[i * a_row + k * a_column]; rows of B are b_row apart, and with
/// Packs they are also written to the panel `packed`.
///
/// Uses parameter packs instead of loops, so that the tile is in registers regardless of the optimiser.
template <class T, int Vectors, bool Packs, int... I, int... J, int... IJ>
WEFT_INLINE void multiply_tile_of(std::integer_sequence<int, I...>, std::integer_sequence<int, J...>,
                                  std::integer_sequence<int, IJ...>, index_t depth, const T* a,
                                  index_t a_row, index_t a_column, const T* b, index_t b_row, sum_of<T>* c,
                                  index_t c_row, bool add, [[maybe_unused]] T* packed) {
  constexpr int lanes = blocking<T>::lanes;
  using V = simd::vec<lane_of<T>, lanes>;
  using S = simd::vec<sum_of<T>, lanes>;
  S sum[] = {((void)IJ, S{})...};
  const T* row[] = {(a + I * a_row)...};
  (__builtin_prefetch(c + IJ / Vectors * c_row + IJ % Vectors * lanes, 1), ...);
  for (index_t k = 0; k < depth; ++k) {
    const V column[] = {load_packed<V>(b + J * lanes)...};
    (__builtin_prefetch(b + rows_ahead * b_row + J * lanes), ...);
    if constexpr (Packs) {
      (simd::store(reinterpret_cast<lane_of<T>*>(packed + J * lanes), column[J]), ...);
      packed += Vectors * lanes;
    }
    const auto multiply_row = [&]<int R>(std::integral_constant<int, R>) __attribute__((always_inline)) {
      const V x = simd::splat<V>(load_packed<lane_of<T>>(row[R] + k * a_column));  // one register at a time
      (multiply_add(sum[R * Vectors + J], x, column[J]), ...);
    };
    (multiply_row(std::integral_constant<int, I>{}), ...);
    b += b_row;
  }
  if (add)
    ((sum[IJ] += simd::load<S>(c + IJ / Vectors * c_row + IJ % Vectors * lanes)), ...);
  (simd::store(c + IJ / Vectors * c_row + IJ % Vectors * lanes, sum[IJ]), ...);
}

template <class T, int Rows, int Vectors>
[[gnu::noinline]] void micro_kernel(index_t depth, const T* a, index_t a_row, index_t a_column,
                                    const T* b, index_t b_row, sum_of<T>* c, index_t c_row, bool add) {
  multiply_tile_of<T, Vectors, false>(std::make_integer_sequence<int, Rows>{},
                                      std::make_integer_sequence<int, Vectors>{},
                                      std::make_integer_sequence<int, Rows * Vectors>{}, depth, a, a_row,
                                      a_column, b, b_row, c, c_row, add, nullptr);
}

/// A whole tile, which also packs the panel of B that it reads.
template <class T>
[[gnu::noinline]] void packing_kernel(index_t depth, const T* a, index_t a_row, index_t a_column, const T* b,
                                      index_t b_row, sum_of<T>* c, index_t c_row, bool add, T* packed) {
  using B = blocking<T>;
  multiply_tile_of<T, B::vectors, true>(std::make_integer_sequence<int, B::tile_rows>{},
                                        std::make_integer_sequence<int, B::vectors>{},
                                        std::make_integer_sequence<int, B::tile_rows * B::vectors>{}, depth,
                                        a, a_row, a_column, b, b_row, c, c_row, add, packed);
}

template <class T>
using micro_kernel_function = void (*)(index_t, const T*, index_t, index_t, const T*, index_t, sum_of<T>*,
                                       index_t, bool);

/// Micro-kernels of a few sizes, to limit compile time: a tile of another height is computed in parts, and
/// one of another width with unused columns. f64 has the fewest sizes, as it serves mainly to check
/// gradients.
template <class T>
struct micro_kernels {
  static constexpr int full = blocking<T>::tile_rows, wide = blocking<T>::vectors;
  static constexpr bool few = sizeof(T) == 8;
  static constexpr int width(int vectors) { return few ? wide : vectors; }
  template <int Rows>
  static constexpr micro_kernel_function<T> of_width[3] = {
      &micro_kernel<T, Rows, width(1)>, &micro_kernel<T, Rows, width(2)>, &micro_kernel<T, Rows, wide>};

  static constexpr int vectors_for(index_t columns) {
    return width(static_cast<int>((columns + blocking<T>::lanes - 1) / blocking<T>::lanes));
  }
  static void run(int height, int vectors, index_t depth, const T* a, index_t a_row,
                  index_t a_column, const T* b, index_t b_row, sum_of<T>* c, index_t c_row, bool add) {
    const auto run_rows = [&]<int Rows>(std::integral_constant<int, Rows>) {
      of_width<Rows>[vectors - 1](depth, a, a_row, a_column, b, b_row, c, c_row, add);
      height -= Rows;
      a += Rows * a_row;
      c += Rows * c_row;
    };
    while (height > 0) {
      if (height >= full) run_rows(std::integral_constant<int, full>{});
      else if (height >= 4 && !few) run_rows(std::integral_constant<int, few ? 1 : 4>{});
      else if (height >= 2 && !few) run_rows(std::integral_constant<int, few ? 1 : 2>{});
      else run_rows(std::integral_constant<int, 1>{});
    }
  }
};

/// One tile of sums; a ragged right edge is computed in a wider temporary tile.
template <class T>
void multiply_tile(index_t depth, const T* a, index_t a_row, index_t a_column, const T* b,
                   index_t b_row, sum_of<T>* c, index_t c_row, int height, index_t columns, bool add) {
  using B = blocking<T>;
  const int vectors = micro_kernels<T>::vectors_for(columns);
  if (columns == vectors * B::lanes) {
    micro_kernels<T>::run(height, vectors, depth, a, a_row, a_column, b, b_row, c, c_row, add);
    return;
  }
  alignas(64) sum_of<T> tile[B::tile_rows * B::tile_columns];
  micro_kernels<T>::run(height, vectors, depth, a, a_row, a_column, b, b_row, tile,
                        B::tile_columns, false);
  store_tile<B::tile_columns>(tile, c, c_row, height, columns, add);
}

}  // namespace detail
}  // namespace WEFT_ISA
}  // namespace weft::cpu
