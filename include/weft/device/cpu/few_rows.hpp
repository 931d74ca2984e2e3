// SPDX-License-Identifier: MIT
// Products with few rows, such as a linear layer applied to one sample: B is read once and not packed, since
// packing would read and write all of it once more. With a transposed B they are dot products of contiguous
// rows; bf16 and f16 are widened in registers.
#pragma once

#include <weft/device/cpu/executor.hpp>
#include <weft/device/cpu/packing.hpp>
#include <weft/device/cpu/tiles.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {
namespace detail {

/// The type in which products of few rows are computed.
template <class From>
using wide_type = std::conditional_t<is_storage_type<From>, float, From>;

/// The type in which dot products are computed: pairs of bf16 if the machine can multiply them.
template <class From>
using dot_type =
    std::conditional_t<elements_in<typename packing<From>::type> == 2, bf16_pair, wide_type<From>>;

/// Rows of A and columns of B per step: one sum for each lane of a vector.
template <class From>
struct dot_blocking {
  static constexpr int lanes = packed_lanes<wide_type<From>>;
  static constexpr int elements = elements_in<dot_type<From>>;
  static constexpr int rows = lanes >= 8 ? 4 : 2, columns = lanes / rows;
  /// Above this many rows, blocking is faster. For a transposed B: dot products over few elements cost more
  /// to sum across lanes than to compute.
  static constexpr index_t most_rows(index_t depth) {
    constexpr bool has_tiles = std::is_same_v<From, bfloat16> && WEFT_HAS_TILES;
    constexpr index_t most = has_tiles ? 1 : elements == 2 ? 16 : sizeof(From) == 8 ? 4 : 8;
    return std::min(most, std::max<index_t>(depth / 32, 4));
  }
  /// For a B with contiguous rows; B is read in place in more cases where types are not widened.
  static constexpr index_t most_rows_spread = is_storage_type<From> ? 4 : 1;
  /// Vectors of a row of B per step; most of them for one row of A, so that memory is read in long pieces.
  static constexpr int vectors = is_storage_type<From> ? 4 : 12;
  /// Number of products that are summed before the sum is added to the previous ones.
  static constexpr index_t depth_block = index_t{256} * lanes * elements;
  /// Rows per task: at least the maximum, so that only columns are divided among tasks.
  static constexpr index_t task_rows = 16;
};

/// Sums for `height` rows of A from `a` and `width` columns of B from `b`, each contiguous. Rows and columns
/// beyond these repeat the last one and are not stored.
template <class From, class Out, int... I, int... J, int... IJ>
WEFT_INLINE void dot_kernel(std::integer_sequence<int, I...>, std::integer_sequence<int, J...>,
                            std::integer_sequence<int, IJ...>, index_t depth, const From* a, index_t a_row,
                            index_t height, const From* b, index_t b_column, index_t width,
                            const result_matrix<Out>& c) {
  using P = dot_type<From>;
  using T = sum_of<P>;
  constexpr int lanes = dot_blocking<From>::lanes, step = lanes * dot_blocking<From>::elements,
                columns = sizeof...(J);
  using V = simd::vec<lane_of<P>, lanes>;
  using S = simd::vec<T, lanes>;
  const From* const row[] = {a + std::min<index_t>(I, height - 1) * a_row...};
  const From* const column[] = {b + std::min<index_t>(J, width - 1) * b_column...};
  S sum[] = {((void)IJ, S{})...};
  const auto load = [](const From* p) {
    if constexpr (dot_blocking<From>::elements == 2) return load_packed<V>(p);
    else return simd::load_stored<V>(p);
  };
  const index_t ahead = depth > 2048 ? 1024 : columns * b_column;
  S before[] = {((void)IJ, S{})...};  // the sums of blocks
  index_t k = 0;
  for (;;) {
    const index_t end = std::min(depth, k + dot_blocking<From>::depth_block);
    for (; k + step <= end; k += step) {
      (__builtin_prefetch(column[J] + ahead + k), ...);
      const V x[] = {load(row[I] + k)...}, y[] = {load(column[J] + k)...};
      (multiply_add(sum[IJ], x[IJ / columns], y[IJ % columns]), ...);
    }
    if (end == depth) break;
    ((before[IJ] += sum[IJ], sum[IJ] = S{}), ...);
  }
  if (k < depth) {
    const V x[] = {packed_along<V, P>(row[I] + k, depth - k)...},
            y[] = {packed_along<V, P>(column[J] + k, depth - k)...};
    (multiply_add(sum[IJ], x[IJ / columns], y[IJ % columns]), ...);
  }
  if (depth > dot_blocking<From>::depth_block) ((sum[IJ] += before[IJ]), ...);
  transpose(sum);
  const S all = (sum[IJ] + ...);
  for (index_t i = 0; i < height; ++i)
    for (index_t j = 0; j < width; ++j) {
      Out& to = c.data[i * c.row + j];
      to = static_cast<Out>(c.add ? static_cast<T>(to) + all[i * columns + j] : all[i * columns + j]);
    }
}

/// Sums for `height` rows of A from `a` and as many columns of B from `b` as the vectors J hold; rows of B
/// are contiguous, and `width` columns are stored.
template <class From, class Out, int... I, int... J, int... IJ>
WEFT_INLINE void spread_kernel(std::integer_sequence<int, I...>, std::integer_sequence<int, J...>,
                               std::integer_sequence<int, IJ...>, index_t depth, const matrix<From>& a,
                               index_t height, const From* b, index_t b_row, index_t width,
                               const result_matrix<Out>& c) {
  using T = wide_type<From>;
  constexpr int lanes = dot_blocking<From>::lanes, vectors = sizeof...(J);
  using V = simd::vec<T, lanes>;
  const From* const row[] = {a.data + std::min<index_t>(I, height - 1) * a.row...};
  V sum[] = {((void)IJ, V{})...}, before[] = {((void)IJ, V{})...};
  for (index_t k = 0; k < depth; ++k, b += b_row) {
    if (k > 0 && k % dot_blocking<From>::depth_block == 0) ((before[IJ] += sum[IJ], sum[IJ] = V{}), ...);
    (__builtin_prefetch(b + rows_ahead * b_row + J * lanes), ...);
    const V x[] = {simd::splat<V>(static_cast<T>(row[I][k * a.column]))...};
    if (width == vectors * lanes) {
      const V y[] = {simd::load_stored<V>(b + J * lanes)...};
      (multiply_add(sum[IJ], x[IJ / vectors], y[IJ % vectors]), ...);
    } else {
      const V y[] = {packed_along<V, T>(b + J * lanes, std::max<index_t>(width - J * lanes, 0))...};
      (multiply_add(sum[IJ], x[IJ / vectors], y[IJ % vectors]), ...);
    }
  }
  if (depth > dot_blocking<From>::depth_block) ((sum[IJ] += before[IJ]), ...);
  alignas(64) T sums[sizeof...(IJ) * lanes];
  (simd::store(sums + IJ * lanes, sum[IJ]), ...);
  store_tile<vectors * lanes>(sums, c.data, c.row, height, width, c.add);
}

/// Computes the block by dot products, Rows rows at a time.
template <int Rows, class From, class Out>
void multiply_by_dots(const block_range& range, index_t depth, const matrix<From>& a, const matrix<From>& b,
                      const result_matrix<Out>& c) {
  constexpr int lanes = dot_blocking<From>::lanes, columns = lanes / Rows;
  for (index_t j = range.j0; j < range.j1; j += columns)
    for (index_t i = range.i0; i < range.i1; i += Rows)
      dot_kernel(std::make_integer_sequence<int, Rows>{}, std::make_integer_sequence<int, columns>{},
                 std::make_integer_sequence<int, lanes>{}, depth, a.data + i * a.row, a.row,
                 std::min<index_t>(Rows, range.i1 - i), b.data + j * b.column, b.column,
                 std::min<index_t>(columns, range.j1 - j), c.from(i, j));
}

/// How products of few rows are computed: not by these kernels, by dot products, or row by row of B.
enum class few_rows : std::uint8_t { no, dots, spread };

/// The method that strides and sizes allow and make worthwhile. The rows of a B with one column are not
/// vectors.
template <class From>
few_rows few_rows_of(const gemm_size& size, const matrix<From>& a, const matrix<From>& b) {
  using B = dot_blocking<From>;
  if (a.is_merged() || b.is_merged()) return few_rows::no;
  const bool contiguous = a.column == 1 && b.row == 1;
  if (contiguous && (b.column != 1 || size.n == 1))
    return size.m <= B::most_rows(size.k) ? few_rows::dots : few_rows::no;
  return b.column == 1 && size.m <= B::most_rows_spread ? few_rows::spread : few_rows::no;
}

template <class From, class Out>
[[gnu::noinline]] void multiply_few_rows(few_rows how, const block_range& range, index_t depth,
                                         const matrix<From>& a, const matrix<From>& b,
                                         const result_matrix<Out>& c) {
  using B = dot_blocking<From>;
  if (how == few_rows::spread) {
    constexpr std::make_integer_sequence<int, B::rows> rows;
    constexpr std::make_integer_sequence<int, B::vectors> across;
    for (index_t j = range.j0; j < range.j1; j += B::vectors * B::lanes) {
      const index_t width = std::min<index_t>(B::vectors * B::lanes, range.j1 - j);
      for (index_t i = range.i0; i < range.i1; i += B::rows) {
        const matrix<From> from{a.data + i * a.row, a.row, a.column};
        const index_t height = std::min<index_t>(B::rows, range.i1 - i);
        if (B::most_rows_spread == 1 || height == 1)
          spread_kernel(std::integer_sequence<int, 0>{}, across, across, depth, from, 1, b.data + j, b.row,
                        width, c.from(i, j));
        else if constexpr (B::most_rows_spread > 1)
          spread_kernel(rows, across, std::make_integer_sequence<int, B::rows * B::vectors>{}, depth, from,
                        height, b.data + j, b.row, width, c.from(i, j));
      }
    }
    return;
  }
  const index_t height = range.i1 - range.i0;
  if (height == 1) multiply_by_dots<1>(range, depth, a, b, c);
  else if (height == 2) multiply_by_dots<2>(range, depth, a, b, c);
  else multiply_by_dots<B::rows>(range, depth, a, b, c);
}

}  // namespace detail
}  // namespace WEFT_ISA
}  // namespace weft::cpu
