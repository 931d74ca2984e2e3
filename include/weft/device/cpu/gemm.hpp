// SPDX-License-Identifier: MIT
// Matrix multiplication on the CPU: C = A B for operands with any strides.
//
// The classic scheme (Goto and van de Geijn, 2008): a micro-kernel keeps a tile of C in registers;
// blocks of A stay in the second cache, panels of B are packed as they are first read. A task owns
// a block of C for all of K, so nothing depends on how many threads there are.
//
// Sums of bf16 and f16 are f32; C is rounded once, when its tile is done. bf16 goes to tile
// registers (tiles.hpp) or to instructions for pairs where there are such, few rows to few_rows.hpp.
//
//   multiply({m, n, k}, matrix<float>{a, k, 1}, matrix<float>{b, n, 1}, result_matrix<float>{c, n}, threads);
#pragma once

#include <algorithm>

#include <weft/device/cpu/executor.hpp>
#include <weft/device/cpu/few_rows.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

namespace detail {

/// Tile and block sizes, from the registers and the usual first cache (32 KiB).
template <class T>
struct blocking {
  static constexpr int lanes = packed_lanes<T>;
  static constexpr int vectors = vector_registers == 32 ? 4 : 2;  // of a row of the tile
  static constexpr int tile_rows = 6;
  static constexpr int tile_columns = vectors * lanes;
  static constexpr int depth = 768 * 4 / static_cast<int>(sizeof(T));
  static constexpr int packed_row = depth + lanes;  // not a multiple of the cache's set stride
  static constexpr int packed_column = 8;           // rows of a tile, rounded up

  /// Rows of A, of which a tile has `tile_bytes`, that fill five eighths of the second cache.
  static index_t block_rows(index_t tile_bytes) { return std::max<index_t>(second_cache() * 5 / 8 / tile_bytes, 8) * tile_rows; }
};

/// A tile of C: Rows by Vectors. A[i][k] is a[i * a_row + k * a_column]; rows of B are b_row apart, and
/// with Packs they are left as a panel in `packed`.
///
/// Packs instead of loops, because the tile must live in registers whatever the optimiser thinks.
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
    if constexpr (Packs) {
      (__builtin_prefetch(b + rows_ahead * b_row + J * lanes), ...);
      (simd::store(reinterpret_cast<lane_of<T>*>(packed + J * lanes), column[J]), ...);
      packed += Vectors * lanes;
    }
    const auto multiply_row = [&]<int R>(std::integral_constant<int, R>) __attribute__((always_inline)) {
      const V x = simd::splat<V>(static_cast<lane_of<T>>(row[R][k * a_column]));  // one register at a time
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

/// A whole tile that packs the panel of B which it reads.
template <class T>
[[gnu::noinline]] void packing_kernel(index_t depth, const T* a, index_t a_row, index_t a_column,
                                      const T* b, index_t b_row, sum_of<T>* c, index_t c_row, bool add, T* packed) {
  using B = blocking<T>;
  multiply_tile_of<T, B::vectors, true>(std::make_integer_sequence<int, B::tile_rows>{},
                                        std::make_integer_sequence<int, B::vectors>{},
                                        std::make_integer_sequence<int, B::tile_rows * B::vectors>{}, depth, a, a_row,
                                        a_column, b, b_row, c, c_row, add, packed);
}

template <class T>
using micro_kernel_function = void (*)(index_t, const T*, index_t, index_t, const T*, index_t, sum_of<T>*,
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
                  index_t a_column, const T* b, index_t b_row, sum_of<T>* c, index_t c_row, bool add) {
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

/// Rows [i0, i0 + rows) of A as tiles, for `depth` packed elements of which k0 is the first element.
/// Rows that are contiguous are packed as they are; transposed operands have their columns packed.
template <class T, class From>
void pack_a(const matrix<From>& a, index_t i0, index_t rows, index_t k0, index_t depth, index_t elements, T* to) {
  using B = blocking<T>;
  using V = simd::vec<lane_of<T>, B::lanes>;
  constexpr index_t n = elements_in<T>;
  const bool by_column = a.row == 1 && a.column != 1;
  for (index_t t = 0; t < rows; t += B::tile_rows) {
    const index_t height = std::min<index_t>(B::tile_rows, rows - t);
    const From* from = a.data + (i0 + t) * a.row + k0 * a.column;
    T* tile = by_column ? to + t / B::tile_rows * B::packed_column * B::depth : to + t * B::packed_row;
    const index_t tile_row = by_column ? 1 : B::packed_row, tile_column = by_column ? B::packed_column : 1;
    if (a.column == 1) {
      for (index_t i = 0; i < height; ++i)
        for (index_t k = 0; k < depth; k += B::lanes)
          simd::store_some(reinterpret_cast<lane_of<T>*>(tile + i * tile_row + k),
                           packed_along<V, T>(from + i * a.row + k * n, elements - k * n), depth - k);
    } else if (by_column && t + B::packed_column <= rows) {  // as many as a vector has
      using V = simd::vec<lane_of<T>, B::packed_column>;
      for (index_t k = 0; k < depth; ++k)
        simd::store(reinterpret_cast<lane_of<T>*>(tile + k * tile_column), packed_across<V, T>(from + k * n * a.column, a.column, elements - k * n));
    } else {
      for (index_t k = 0; k < depth; ++k)
        for (index_t i = 0; i < height; ++i)
          tile[i * tile_row + k * tile_column] = packed_at<T>(from + i * a.row + k * n * a.column, a.column, elements - k * n);
    }
  }
}

/// One tile of sums; a ragged right edge goes by a tile with columns to spare.
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
  for (int i = 0; i < height; ++i)
    for (index_t j = 0; j < columns; ++j) {
      sum_of<T>& out = c[i * c_row + j];
      out = add ? out + tile[i * B::tile_columns + j] : tile[i * B::tile_columns + j];
    }
}

/// One block of C for all of K, by one thread. Sums of another type than C's are kept tile by tile
/// until the last part of K.
template <class From, class Out>
void multiply_block(const block_range& range, index_t elements, const matrix<From>& a,
                    const matrix<From>& b, const result_matrix<Out>& c, scratch_memory& scratch) {
  using T = typename packing<From>::type;
  using B = blocking<T>;
  constexpr index_t n = elements_in<T>;
  constexpr bool direct = std::is_same_v<Out, sum_of<T>>;
  constexpr index_t tile_size = B::tile_rows * B::tile_columns;
  const index_t depth = (elements + n - 1) / n;
  const bool by_column = a.row == 1 && a.column != 1;
  const index_t deepest = by_column ? B::depth * 2 / 3 : B::depth;  // columns of A are packed with room to spare
  const index_t parts = std::max<index_t>((depth + deepest - 1) / deepest, 1);
  index_t part = std::max<index_t>((depth + parts - 1) / parts, 1);
  if (parts > 1) part = (part + B::lanes - 1) / B::lanes * B::lanes;
  const index_t block_rows = B::block_rows((by_column ? B::packed_column : B::tile_rows) * part * static_cast<index_t>(sizeof(T)));
  const index_t a_rows = std::min(block_rows, range.i1 - range.i0) + B::tile_rows;
  const index_t a_space = (a_rows * std::max<index_t>(B::packed_row, B::depth * B::packed_column / B::tile_rows + 1) + 15) / 16 * 16;
  const index_t b_space = B::tile_columns * B::depth;
  const index_t panels = (range.j1 - range.j0 + B::tile_columns - 1) / B::tile_columns;
  const index_t sums_space = direct ? 0 : parts > 1 ? (a_rows / B::tile_rows + 1) * panels * tile_size : tile_size;
  T* a_packed = static_cast<T*>(scratch.get(static_cast<std::size_t>(a_space + b_space + 16 + sums_space) * sizeof(T)));
  T* b_packed = a_packed + a_space;
  [[maybe_unused]] auto* sums = reinterpret_cast<sum_of<T>*>(b_packed + b_space);
  // Rows of A that are contiguous are read where they are, unless they all fall into the same sets of the caches.
  const bool a_in_place = std::is_same_v<T, From> && a.column == 1 && a.row * static_cast<index_t>(sizeof(From)) % 4096 != 0;
  const index_t a_row = by_column ? 1 : a_in_place ? a.row : B::packed_row, a_column = by_column ? B::packed_column : 1;
  const index_t a_tile = by_column ? B::packed_column * B::depth : B::tile_rows * a_row;
  const bool b_contiguous = std::is_same_v<T, From> && b.column == 1;
  if (depth == 0)
    for (index_t i = range.i0; i < range.i1; ++i)
      std::fill(c.data + i * c.row + range.j0, c.data + i * c.row + range.j1, Out{});
  for (index_t i0 = range.i0; i0 < range.i1; i0 += block_rows) {
    const index_t rows = std::min(block_rows, range.i1 - i0);
    for (index_t k0 = 0; k0 < depth; k0 += part) {
      const index_t k = std::min(part, depth - k0), left = elements - k0 * n;
      const T* tiles = a_packed;
      if (!a_in_place) pack_a<T>(a, i0, rows, k0 * n, k, left, a_packed);
      else if constexpr (std::is_same_v<T, From>) tiles = a.data + i0 * a.row + k0;
      for (index_t j0 = range.j0; j0 < range.j1; j0 += B::tile_columns) {
        const index_t columns = std::min<index_t>(B::tile_columns, range.j1 - j0);
        const T* panel = b_packed;
        index_t panel_row = B::tile_columns, t = 0;
        const bool whole = columns == B::tile_columns;
        if (b_contiguous && (whole ? rows <= B::tile_rows : rows <= 64 && columns == micro_kernels<T>::vectors_for(columns) * B::lanes)) {
          if constexpr (std::is_same_v<T, From>) panel = b.data + k0 * b.row + j0;
          panel_row = b.row;
        } else if (direct && b_contiguous && whole) {  // the first tile packs B while it multiplies
          if constexpr (direct && std::is_same_v<T, From>)
            packing_kernel<T>(k, tiles, a_row, a_column, b.data + k0 * b.row + j0, b.row, c.data + i0 * c.row + j0, c.row, k0 > 0, b_packed);
          t = B::tile_rows;
        } else {
          pack_panel<T, B::tile_columns>(b, k0 * n, k, left, j0, columns, b_packed);
        }
        for (; t < rows; t += B::tile_rows) {
          const int height = static_cast<int>(std::min<index_t>(B::tile_rows, rows - t));
          const T* tile = tiles + t / B::tile_rows * a_tile;
          Out* out = c.data + (i0 + t) * c.row + j0;
          if constexpr (direct) {
            multiply_tile<T>(k, tile, a_row, a_column, panel, panel_row, out, c.row, height, columns, k0 > 0);
          } else {
            auto* sum = parts > 1 ? sums + (t / B::tile_rows * panels + (j0 - range.j0) / B::tile_columns) * tile_size : sums;
            micro_kernels<T>::run(height, micro_kernels<T>::vectors_for(columns), k, tile, a_row, a_column, panel, panel_row, sum,
                                  B::tile_columns, k0 > 0);
            if (k0 + k == depth) store_tile<B::tile_columns>(sum, out, c.row, height, columns);
          }
        }
      }
    }
  }
}

/// Products of `size` in tasks of whole tiles: as many as keep `threads` busy, each at least two tiles high and wide.
/// Which element is in which task depends on the number of threads, how it is computed does not.
class task_grid {
 public:
  task_grid(const gemm_size& size, index_t products, index_t tile_rows, index_t tile_columns, double serial_work, int threads)
      : size_(size), products_(products), tile_rows_(tile_rows), tile_columns_(tile_columns) {
    double work = 2;
    for (const index_t n : {size.m, size.n, size.k, products}) work *= static_cast<double>(n);
    parallel_ = threads > 1 && work >= serial_work;
    const index_t wanted = !parallel_ ? 1 : threads * (work > 4000 * serial_work ? 4 : work > 400 * serial_work ? 2 : 1);
    while (products * rows_ * columns_ < wanted) {
      const bool can_rows = size.m / rows_ >= 2 * tile_rows;
      const bool can_columns = size.n / columns_ >= 2 * tile_columns;
      if (!can_rows && !can_columns) break;
      const bool taller = size.m / rows_ >= size.n / columns_;
      (can_rows && (taller || !can_columns) ? rows_ : columns_) *= 2;
    }
  }

  /// Calls f(product, block, scratch) for every task.
  template <class F>
  void run(executor& threads, const F& f) const {
    const index_t blocks = rows_ * columns_, all = products_ * blocks, tasks = std::min<index_t>(all, 8 * threads.threads());
    threads.parallel_for(tasks, [&](index_t task, scratch_memory& scratch) {
      for (index_t n = all * task / tasks; n < all * (task + 1) / tasks; ++n) f(n / blocks, block(n % blocks), scratch);
    }, parallel_);
  }

 private:
  block_range block(index_t n) const {
    const auto part = [](index_t all, index_t tile, index_t n, index_t parts) {
      return std::min(all, (all + tile - 1) / tile * n / parts * tile);
    };
    const index_t i = n % rows_, j = n / rows_;
    return {part(size_.m, tile_rows_, i, rows_), part(size_.m, tile_rows_, i + 1, rows_),
            part(size_.n, tile_columns_, j, columns_), part(size_.n, tile_columns_, j + 1, columns_)};
  }

  gemm_size size_;
  index_t products_, tile_rows_, tile_columns_, rows_ = 1, columns_ = 1;
  bool parallel_;
};

}  // namespace detail

/// One product: C = A B, with A [m, k], B [k, n] and C [m, n] in row-major order. C has the type of the operands,
/// or f32 where those are bf16 or f16.
template <class From, class Out = From>
struct operands_of_product {
  matrix<From> a, b;
  result_matrix<Out> c;
};

/// `products` of them, the n-th given by at(n); they have their size and strides in common.
template <class From, class Out, class At>
void multiply_each(const gemm_size& size, index_t products, const At& at, executor& threads) {
  if (products == 0) return;
  const operands_of_product<From, Out> first = at(0);
  if (detail::are_few_rows(size, first.a, first.b)) {
    using B = detail::dot_blocking<From>;
    return detail::task_grid(size, products, B::task_rows, 16 * B::columns, 1e6, threads.threads())
        .run(threads, [&](index_t n, const detail::block_range& block, scratch_memory&) {
          const operands_of_product<From, Out> o = at(n);
          detail::multiply_few_rows(block, size.k, o.a, o.b, o.c);
        });
  }
#if WEFT_HAS_TILES
  if constexpr (std::is_same_v<From, bfloat16>)
    if (detail::tiles_permitted()) {
      using B = detail::tile_blocking;
      return detail::task_grid(size, products, B::tile_rows, B::tile_columns, 4e6, threads.threads())
          .run(threads, [&](index_t n, const detail::block_range& block, scratch_memory& scratch) {
            const operands_of_product<From, Out> o = at(n);
            detail::multiply_block_on_tiles(block, size.k, o.a, o.b, o.c, scratch);
          });
    }
#endif
  using B = detail::blocking<typename detail::packing<From>::type>;
  detail::task_grid(size, products, B::tile_rows, B::tile_columns, 1e6, threads.threads())
      .run(threads, [&](index_t n, const detail::block_range& block, scratch_memory& scratch) {
        const operands_of_product<From, Out> o = at(n);
        detail::multiply_block(block, size.k, o.a, o.b, o.c, scratch);
      });
}

template <class From, class Out>
void multiply(const gemm_size& size, const matrix<From>& a, const matrix<From>& b, const result_matrix<Out>& c, executor& threads) {
  multiply_each<From, Out>(size, 1, [&](index_t) { return operands_of_product<From, Out>{a, b, c}; }, threads);
}

}  // namespace WEFT_ISA
}  // namespace weft::cpu
