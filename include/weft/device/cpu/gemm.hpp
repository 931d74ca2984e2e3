// SPDX-License-Identifier: MIT
// Matrix multiplication on the CPU: C = A B, or C += A B, for operands with any strides.
//
// The classic scheme (Goto and van de Geijn, 2008): a micro-kernel keeps a tile of C in registers;
// A is packed into blocks that stay in L2, B into panels that stream from L1. A task owns a block
// of C for all of K, so nothing depends on how many threads there are.
//
//   multiply<float>({m, n, k}, a, b, {c, n}, false, threads);
#pragma once

#include <algorithm>

#include <weft/device/cpu/executor.hpp>
#include <weft/device/simd.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

struct gemm_size {
  index_t m, n, k;
};

/// Element (i, j) of a matrix is data[i * row + j * column].
template <class T>
struct matrix {
  const T* data;
  index_t row, column;
};

/// Rows of the result are contiguous.
template <class T>
struct result_matrix {
  T* data;
  index_t row;
};

namespace detail {

/// Tile and block sizes, from the registers and the usual caches (32 KiB L1, 512 KiB+ L2).
template <class T>
struct blocking {
  static constexpr int lanes = vector_bytes / static_cast<int>(sizeof(T));
  static constexpr int vectors = vector_registers == 32 ? 4 : 2;  // of a row of the tile
  static constexpr int tile_rows = 6;
  static constexpr int tile_columns = vectors * lanes;
  static constexpr int depth = 512 * 4 / static_cast<int>(sizeof(T));
  static constexpr int block_rows = 60 * tile_rows;
  static constexpr int block_columns = 2 * tile_columns;
  static constexpr int packed_row = depth + lanes;  // not a multiple of the cache's set stride
  static constexpr int packed_column = 8;           // rows of a tile, rounded up
};

/// A tile of C: Rows by Vectors. A[i][k] is a[i * a_row + k * a_column]; rows of B are b_row apart.
///
/// Packs instead of loops, because the tile must live in registers whatever the optimiser thinks.
template <class T, int Vectors, int... I, int... J, int... IJ>
WEFT_INLINE void multiply_tile_of(std::integer_sequence<int, I...>, std::integer_sequence<int, J...>,
                                  std::integer_sequence<int, IJ...>, index_t depth, const T* a,
                                  index_t a_row, index_t a_column, const T* b, index_t b_row, T* c,
                                  index_t c_row, bool add) {
  constexpr int lanes = blocking<T>::lanes;
  using V = simd::vec<T, lanes>;
  V sum[] = {((void)IJ, V{})...};
  const T* row[] = {(a + I * a_row)...};
  (__builtin_prefetch(c + IJ / Vectors * c_row + IJ % Vectors * lanes, 1), ...);
  for (index_t k = 0; k < depth; ++k) {
    const V column[] = {simd::load<V>(b + J * lanes)...};
    const V x[] = {simd::splat<V>(row[I][k * a_column])...};
    ((sum[IJ] += x[IJ / Vectors] * column[IJ % Vectors]), ...);
    b += b_row;
  }
  if (add)
    ((sum[IJ] += simd::load<V>(c + IJ / Vectors * c_row + IJ % Vectors * lanes)), ...);
  (simd::store(c + IJ / Vectors * c_row + IJ % Vectors * lanes, sum[IJ]), ...);
}

template <class T, int Rows, int Vectors>
[[gnu::noinline]] void micro_kernel(index_t depth, const T* a, index_t a_row, index_t a_column,
                                    const T* b, index_t b_row, T* c, index_t c_row, bool add) {
  multiply_tile_of<T, Vectors>(std::make_integer_sequence<int, Rows>{},
                               std::make_integer_sequence<int, Vectors>{},
                               std::make_integer_sequence<int, Rows * Vectors>{}, depth, a, a_row,
                               a_column, b, b_row, c, c_row, add);
}

template <class T>
using micro_kernel_function = void (*)(index_t, const T*, index_t, index_t, const T*, index_t, T*,
                                       index_t, bool);

/// Micro-kernels come in few sizes, so that they compile quickly; a tile of another height is done
/// in parts, one of another width with columns to spare. f64 has the fewest: its users check
/// gradients.
template <class T>
struct micro_kernels {
  static constexpr int full = blocking<T>::tile_rows, wide = blocking<T>::vectors;
  static constexpr bool few = sizeof(T) == 8;
  static constexpr int half = few ? 1 : 2, narrow = few ? wide : 1, middle = few ? wide : 2;
  static constexpr micro_kernel_function<T> table[3][3] = {
      {&micro_kernel<T, full, narrow>, &micro_kernel<T, full, middle>, &micro_kernel<T, full, wide>},
      {&micro_kernel<T, half, narrow>, &micro_kernel<T, half, middle>, &micro_kernel<T, half, wide>},
      {&micro_kernel<T, 1, narrow>, &micro_kernel<T, 1, middle>, &micro_kernel<T, 1, wide>}};

  static constexpr int vectors_for(index_t columns) {
    const index_t v = (columns + blocking<T>::lanes - 1) / blocking<T>::lanes;
    return !few && v <= 2 ? static_cast<int>(v) : wide;
  }
  static void run(int height, int vectors, index_t depth, const T* a, index_t a_row,
                  index_t a_column, const T* b, index_t b_row, T* c, index_t c_row, bool add) {
    const int column = vectors == wide ? 2 : vectors - 1;
    while (height > 0) {
      const int rows = height >= full ? full : height >= half ? half : 1;
      table[rows == full ? 0 : rows == half ? 1 : 2][column](depth, a, a_row, a_column, b, b_row, c,
                                                          c_row, add);
      height -= rows;
      a += rows * a_row;
      c += rows * c_row;
    }
  }
};

/// Where the lanes of the upper or lower of two rows come from when the blocks of side Distance off
/// the diagonal are exchanged.
template <int Distance, bool Upper, int Lanes>
constexpr int exchanged_lane(int l) {
  if (Upper) return l & Distance ? Lanes + l - Distance : l;
  return l & Distance ? Lanes + l : l + Distance;
}
#if defined(__clang__)
template <int Distance, bool Upper, class V, int... L>
WEFT_INLINE V exchanged(V a, V b, std::integer_sequence<int, L...>) {
  return __builtin_shufflevector(a, b, exchanged_lane<Distance, Upper, sizeof...(L)>(L)...);
}
#else
template <class V, int Distance, bool Upper, class Lanes>
inline constexpr V exchange_mask{};
template <class V, int Distance, bool Upper, int... L>
inline constexpr V exchange_mask<V, Distance, Upper, std::integer_sequence<int, L...>> = {
    exchanged_lane<Distance, Upper, sizeof...(L)>(L)...};
template <int Distance, bool Upper, class V, class Lanes>
WEFT_INLINE V exchanged(V a, V b, Lanes) {
  using mask = simd::rebind<V, std::conditional_t<sizeof(simd::lane<V>) == 8, std::int64_t, std::int32_t>>;
  return __builtin_shuffle(a, b, exchange_mask<mask, Distance, Upper, Lanes>);
}
#endif
template <int Distance, class V>
WEFT_INLINE void exchange_blocks(V& x, V& y) {
  constexpr std::make_integer_sequence<int, simd::lane_count<V>> lanes;
  const V a = x, b = y;
  x = exchanged<Distance, true>(a, b, lanes);
  y = exchanged<Distance, false>(a, b, lanes);
}
/// Exchanges rows and columns of a square of vectors by halving distances.
template <class V, int Distance, int... Pair>
WEFT_INLINE void transpose_step(V* r, std::integer_sequence<int, Pair...>) {
  // Pair counts the rows whose bit Distance is 0.
  (exchange_blocks<Distance>(r[Pair / Distance * 2 * Distance + Pair % Distance],
                             r[Pair / Distance * 2 * Distance + Pair % Distance + Distance]),
   ...);
}
template <class V, int Distance>
WEFT_INLINE void transpose_steps(V* r) {
  if constexpr (Distance > 0) {
    transpose_step<V, Distance>(r, std::make_integer_sequence<int, simd::lane_count<V> / 2>{});
    transpose_steps<V, Distance / 2>(r);
  }
}
template <class V>
WEFT_INLINE void transpose(V (&r)[simd::lane_count<V>]) {
  transpose_steps<V, simd::lane_count<V> / 2>(r);
}

/// Rows [i0, i0 + rows) and columns [k0, k0 + depth) of A as tiles. Rows that are contiguous are
/// copied as they are; transposed operands have their columns copied instead.
template <class T>
void pack_a(const matrix<T>& a, index_t i0, index_t rows, index_t k0, index_t depth, T* to) {
  using B = blocking<T>;
  const bool by_column = a.row == 1 && a.column != 1;
  for (index_t t = 0; t < rows; t += B::tile_rows) {
    const index_t height = std::min<index_t>(B::tile_rows, rows - t);
    const T* from = a.data + (i0 + t) * a.row + k0 * a.column;
    if (by_column) {
      T* tile = to + t / B::tile_rows * B::packed_column * B::depth;
      for (index_t k = 0; k < depth; ++k)
        for (index_t i = 0; i < height; ++i) tile[k * B::packed_column + i] = from[k * a.column + i];
    } else {
      T* tile = to + t * B::packed_row;
      for (index_t i = 0; i < height; ++i)
        if (a.column == 1) std::memcpy(tile + i * B::packed_row, from + i * a.row, static_cast<std::size_t>(depth) * sizeof(T));
        else for (index_t k = 0; k < depth; ++k) tile[i * B::packed_row + k] = from[i * a.row + k * a.column];
    }
  }
}

/// Columns [j0, j0 + columns) of rows [k0, k0 + depth) of B as one panel, padded with zeros.
template <class T>
void pack_panel(const matrix<T>& b, index_t k0, index_t depth, index_t j0, index_t columns, T* to) {
  using B = blocking<T>;
  using V = simd::vec<T, B::lanes>;
  const T* from = b.data + k0 * b.row + j0 * b.column;
  if (b.column == 1) {
    for (index_t k = 0; k < depth; ++k, to += B::tile_columns, from += b.row)
      if (columns == B::tile_columns)
        for (int v = 0; v < B::tile_columns; v += B::lanes)
          simd::store(to + v, simd::load<V>(from + v));
      else
        for (index_t j = 0; j < B::tile_columns; ++j) to[j] = j < columns ? from[j] : T{};
  } else if (b.row == 1) {
    for (index_t j = 0; j < B::tile_columns; j += B::lanes)
      for (index_t k = 0; k < depth; k += B::lanes) {
        V square[B::lanes];
        const index_t n = std::min<index_t>(B::lanes, depth - k);
        for (index_t l = 0; l < B::lanes; ++l)
          square[l] = j + l < columns ? simd::load_some<V>(from + (j + l) * b.column + k, n) : V{};
        transpose(square);
        for (index_t l = 0; l < n; ++l) simd::store(to + (k + l) * B::tile_columns + j, square[l]);
      }
  } else {
    for (index_t k = 0; k < depth; ++k)
      for (index_t j = 0; j < B::tile_columns; ++j)
        to[k * B::tile_columns + j] = j < columns ? from[k * b.row + j * b.column] : T{};
  }
}

/// One tile of C; a ragged right edge goes by a tile with columns to spare.
template <class T>
void multiply_tile(index_t depth, const T* a, index_t a_row, index_t a_column, const T* b,
                   index_t b_row, T* c, index_t c_row, int height, index_t columns, bool add) {
  using B = blocking<T>;
  const int vectors = micro_kernels<T>::vectors_for(columns);
  if (columns == vectors * B::lanes) {
    micro_kernels<T>::run(height, vectors, depth, a, a_row, a_column, b, b_row, c, c_row, add);
    return;
  }
  alignas(64) T tile[B::tile_rows * B::tile_columns];
  micro_kernels<T>::run(height, vectors, depth, a, a_row, a_column, b, b_row, tile,
                        B::tile_columns, false);
  for (int i = 0; i < height; ++i)
    for (index_t j = 0; j < columns; ++j) {
      T& out = c[i * c_row + j];
      out = add ? out + tile[i * B::tile_columns + j] : tile[i * B::tile_columns + j];
    }
}

struct block_range {
  index_t i0, i1, j0, j1;
};

/// One block of C for all of K, by one thread.
template <class T>
void multiply_block(const block_range& range, index_t depth, const matrix<T>& a,
                    const matrix<T>& b, const result_matrix<T>& c, bool add,
                    scratch_memory& scratch) {
  using B = blocking<T>;
  const index_t parts = (depth + B::depth - 1) / B::depth;
  index_t part = (depth + parts - 1) / std::max<index_t>(parts, 1);
  if (parts > 1) part = (part + B::lanes - 1) / B::lanes * B::lanes;
  const index_t a_rows = std::min<index_t>(B::block_rows, range.i1 - range.i0) + B::tile_rows;
  const index_t a_space = a_rows * std::max<index_t>(B::packed_row, B::depth * B::packed_column / B::tile_rows + 1);
  T* a_packed = static_cast<T*>(scratch.get(static_cast<std::size_t>(a_space + B::block_columns * (B::depth + B::lanes)) * sizeof(T)));
  T* b_packed = a_packed + (a_space + 15) / 16 * 16;
  const bool by_column = a.row == 1 && a.column != 1;
  // With few rows, packing B costs more than it saves.
  const bool in_place = b.column == 1 && range.i1 - range.i0 <= 64;
  if (depth == 0 && !add)
    for (index_t i = range.i0; i < range.i1; ++i)
      std::fill(c.data + i * c.row + range.j0, c.data + i * c.row + range.j1, T{});
  for (index_t i0 = range.i0; i0 < range.i1; i0 += B::block_rows) {
    const index_t rows = std::min<index_t>(B::block_rows, range.i1 - i0);
    for (index_t k0 = 0; k0 < depth; k0 += part) {
      const index_t k = std::min(part, depth - k0);
      pack_a(a, i0, rows, k0, k, a_packed);
      for (index_t j0 = range.j0; j0 < range.j1; j0 += B::tile_columns) {
        const index_t columns = std::min<index_t>(B::tile_columns, range.j1 - j0);
        const T* panel = b_packed;
        index_t panel_row = B::tile_columns;
        if (in_place && columns == micro_kernels<T>::vectors_for(columns) * B::lanes) {
          panel = b.data + k0 * b.row + j0;
          panel_row = b.row;
        } else {
          pack_panel(b, k0, k, j0, columns, b_packed);
        }
        for (index_t t = 0; t < rows; t += B::tile_rows) {
          const int height = static_cast<int>(std::min<index_t>(B::tile_rows, rows - t));
          T* out = c.data + (i0 + t) * c.row + j0;
          const T* tile = by_column ? a_packed + t / B::tile_rows * B::packed_column * B::depth
                                    : a_packed + t * B::packed_row;
          multiply_tile<T>(k, tile, by_column ? 1 : B::packed_row, by_column ? B::packed_column : 1,
                           panel, panel_row, out, c.row, height, columns, add || k0 > 0);
        }
      }
    }
  }
}

/// Rows times columns of tasks: as many as keep `threads` busy, each at least a few tiles.
template <class T>
std::pair<index_t, index_t> task_grid(const gemm_size& size, int threads) {
  using B = blocking<T>;
  const double work = 2.0 * static_cast<double>(size.m) * static_cast<double>(size.n) * static_cast<double>(size.k);
  index_t rows = 1, columns = 1;
  if (threads == 1 || work < 1e6) return {1, 1};
  const index_t wanted = threads * (work > 4e9 ? 4 : work > 4e8 ? 2 : 1);
  while (rows * columns < wanted) {
    const bool can_rows = size.m / rows >= 2 * B::tile_rows;
    const bool can_columns = size.n / columns >= 2 * B::tile_columns;
    if (!can_rows && !can_columns) break;
    const bool taller = size.m / rows >= size.n / columns;
    if (can_rows && (taller || !can_columns)) rows *= 2;
    else columns *= 2;
  }
  return {rows, columns};
}

}  // namespace detail

/// C = A B (or C += A B if `add`), with A [m, k], B [k, n] and C [m, n] in row-major order.
template <class T>
void multiply(const gemm_size& size, const matrix<T>& a, const matrix<T>& b,
              const result_matrix<T>& c, bool add, executor& threads) {
  using B = detail::blocking<T>;
  const auto [task_rows, task_columns] = detail::task_grid<T>(size, threads.threads());
  const index_t tiles_i = (size.m + B::tile_rows - 1) / B::tile_rows;
  const index_t tiles_j = (size.n + B::tile_columns - 1) / B::tile_columns;
  threads.parallel_for(task_rows * task_columns, [&](index_t task, scratch_memory& scratch) {
    const index_t i = task % task_rows, j = task / task_rows;
    const detail::block_range range{
        tiles_i * i / task_rows * B::tile_rows,
        std::min(size.m, tiles_i * (i + 1) / task_rows * B::tile_rows),
        tiles_j * j / task_columns * B::tile_columns,
        std::min(size.n, tiles_j * (j + 1) / task_columns * B::tile_columns)};
    detail::multiply_block(range, size.k, a, b, c, add, scratch);
  });
}

}  // namespace WEFT_ISA
}  // namespace weft::cpu
