// SPDX-License-Identifier: MIT
// Products of few rows with a transposed matrix, as in a linear layer's answer to one sample: dot
// products of contiguous rows, because packing would read everything once more.
#pragma once

#include <weft/device/cpu/executor.hpp>
#include <weft/device/cpu/packing.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {
namespace detail {

/// Rows of A times columns of B at a time: a sum for each of a vector's lanes.
template <class T>
struct dot_blocking {
  static constexpr int lanes = packed_lanes<T>;
  static constexpr int rows = lanes >= 8 ? 4 : 2, columns = lanes / rows;
  /// With more rows than this, packing B pays.
  static constexpr index_t most_rows = 16;
};

/// Sums of A's `height` rows from `a` with B's `width` columns from `b`, each contiguous. What is beyond
/// height and width is computed again and not stored.
template <class T, int... I, int... J, int... IJ>
WEFT_INLINE void dot_kernel(std::integer_sequence<int, I...>, std::integer_sequence<int, J...>, std::integer_sequence<int, IJ...>,
                            index_t depth, const T* a, index_t a_row, index_t height, const T* b, index_t b_column, index_t width,
                            T* c, index_t c_row) {
  constexpr int lanes = dot_blocking<T>::lanes, columns = dot_blocking<T>::columns;
  using V = simd::vec<T, lanes>;
  const T* const row[] = {a + std::min<index_t>(I, height - 1) * a_row...};
  const T* const column[] = {b + std::min<index_t>(J, width - 1) * b_column...};
  V sum[] = {((void)IJ, V{})...};
  index_t k = 0;
  for (; k + lanes <= depth; k += lanes) {
    const V x[] = {simd::load<V>(row[I] + k)...}, y[] = {simd::load<V>(column[J] + k)...};
    ((sum[IJ] += x[IJ / columns] * y[IJ % columns]), ...);
  }
  if (k < depth) {
    const V x[] = {simd::load_some<V>(row[I] + k, depth - k)...}, y[] = {simd::load_some<V>(column[J] + k, depth - k)...};
    ((sum[IJ] += x[IJ / columns] * y[IJ % columns]), ...);
  }
  transpose(sum);
  const V all = (sum[IJ] + ...);
  for (index_t i = 0; i < height; ++i)
    for (index_t j = 0; j < width; ++j) c[i * c_row + j] = all[i * columns + j];
}

template <class T>
[[gnu::noinline]] void multiply_few_rows(const block_range& range, index_t depth, const matrix<T>& a, const matrix<T>& b,
                                         const result_matrix<T>& c) {
  using B = dot_blocking<T>;
  for (index_t j = range.j0; j < range.j1; j += B::columns)
    for (index_t i = range.i0; i < range.i1; i += B::rows)
      dot_kernel<T>(std::make_integer_sequence<int, B::rows>{}, std::make_integer_sequence<int, B::columns>{},
                    std::make_integer_sequence<int, B::lanes>{}, depth, a.data + i * a.row, a.row, std::min<index_t>(B::rows, range.i1 - i),
                    b.data + j * b.column, b.column, std::min<index_t>(B::columns, range.j1 - j), c.data + i * c.row + j, c.row);
}

}  // namespace detail
}  // namespace WEFT_ISA
}  // namespace weft::cpu
