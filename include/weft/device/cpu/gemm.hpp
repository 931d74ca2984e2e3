// SPDX-License-Identifier: MIT
// Matrix multiplication on the CPU: C = A B for operands with any strides.
//
// The classic scheme (Goto and van de Geijn, 2008): a micro-kernel keeps a tile of C in registers;
// A is packed into blocks that stay in L2, B into panels that stream from L1. A task owns a block
// of C for all of K, so nothing depends on how many threads there are.
//
// bf16 and f16 are widened while they are packed and summed in f32; C is rounded once, when its
// tile is done. Where the machine multiplies pairs of bf16, they are packed as pairs.
//
//   multiply({m, n, k}, matrix<float>{a, k, 1}, matrix<float>{b, n, 1}, result_matrix<float>{c, n}, threads);
#pragma once

#include <unistd.h>

#include <algorithm>

#include <weft/device/cpu/executor.hpp>
#include <weft/device/storage.hpp>

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

/// Elements (i, k) and (i, k + 1), the first in the lower half: what one instruction multiplies.
enum class bf16_pair : std::uint32_t {};

/// What elements are packed as, how many make one packed element, and what products are summed in.
template <class T>
struct packing {
  using type = T;
};
template <>
struct packing<float16> {
  using type = float;
};
template <>
struct packing<bfloat16> {
#if defined(__AVX512BF16__)
  using type = bf16_pair;
#else
  using type = float;
#endif
};
template <class T>
inline constexpr int elements_in = std::is_same_v<T, bf16_pair> ? 2 : 1;
template <class T>
using sum_of = std::conditional_t<std::is_same_v<T, bf16_pair>, float, T>;
template <class T>
using lane_of = std::conditional_t<std::is_same_v<T, bf16_pair>, std::uint32_t, T>;

template <class V, class T>
WEFT_INLINE V load_packed(const T* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class S, class V>
WEFT_INLINE void multiply_add(S& sum, V x, V y) {
  if constexpr (std::is_same_v<S, V>) sum += x * y;
#if defined(__AVX512BF16__)
  else asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y));
#endif
}

/// Bytes of a core's second cache.
inline index_t second_cache() {
#if defined(_SC_LEVEL2_CACHE_SIZE)
  static const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (bytes > 0) return std::min<index_t>(bytes, 4 << 20);
#endif
  return 1 << 20;
}

/// Tile and block sizes, from the registers and the usual first cache (32 KiB).
template <class T>
struct blocking {
  static constexpr int lanes = vector_bytes / static_cast<int>(sizeof(T));
  static constexpr int vectors = vector_registers == 32 ? 4 : 2;  // of a row of the tile
  static constexpr int tile_rows = 6;
  static constexpr int tile_columns = vectors * lanes;
  static constexpr int depth = 512 * 4 / static_cast<int>(sizeof(T));
  static constexpr int block_columns = 2 * tile_columns;
  static constexpr int packed_row = depth + lanes;  // not a multiple of the cache's set stride
  static constexpr int packed_column = 8;           // rows of a tile, rounded up

  /// Rows of A that fill three quarters of the second cache.
  static index_t block_rows() {
    return std::max<index_t>(second_cache() * 3 / 4 / (packed_row * static_cast<index_t>(sizeof(T))) / tile_rows, 8) * tile_rows;
  }
};

/// A tile of C: Rows by Vectors. A[i][k] is a[i * a_row + k * a_column]; rows of B are b_row apart.
///
/// Packs instead of loops, because the tile must live in registers whatever the optimiser thinks.
template <class T, int Vectors, int... I, int... J, int... IJ>
WEFT_INLINE void multiply_tile_of(std::integer_sequence<int, I...>, std::integer_sequence<int, J...>,
                                  std::integer_sequence<int, IJ...>, index_t depth, const T* a,
                                  index_t a_row, index_t a_column, const T* b, index_t b_row, sum_of<T>* c,
                                  index_t c_row, bool add) {
  constexpr int lanes = blocking<T>::lanes;
  using V = simd::vec<lane_of<T>, lanes>;
  using S = simd::vec<sum_of<T>, lanes>;
  S sum[] = {((void)IJ, S{})...};
  const T* row[] = {(a + I * a_row)...};
  (__builtin_prefetch(c + IJ / Vectors * c_row + IJ % Vectors * lanes, 1), ...);
  for (index_t k = 0; k < depth; ++k) {
    const V column[] = {load_packed<V>(b + J * lanes)...};
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
  multiply_tile_of<T, Vectors>(std::make_integer_sequence<int, Rows>{},
                               std::make_integer_sequence<int, Vectors>{},
                               std::make_integer_sequence<int, Rows * Vectors>{}, depth, a, a_row,
                               a_column, b, b_row, c, c_row, add);
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

/// The packed element that begins at `p`; `elements` are left from there on, each `step` apart.
template <class T, class From>
WEFT_INLINE T packed_at(const From* p, index_t step, [[maybe_unused]] index_t elements) {
  if constexpr (std::is_same_v<T, bf16_pair>)
    return static_cast<T>(p->bits | static_cast<std::uint32_t>(elements > 1 ? p[step].bits : 0) << 16);
  else return (void)step, static_cast<T>(*p);
}
/// A vector of packed elements from contiguous ones, of which `elements` are left; zeros after them.
template <class V, class T, class From>
WEFT_INLINE V packed_along(const From* p, index_t elements) {
  constexpr index_t all = simd::lane_count<V> * elements_in<T>;
  if constexpr (sizeof(T) == sizeof(From) * elements_in<T>) {
    if (elements >= all) return load_packed<V>(p);
    V v{};
    std::memcpy(&v, p, static_cast<std::size_t>(std::min(all, elements)) * sizeof(From));
    return v;
  } else {
    if (elements >= all) return simd::load_stored<V>(p);
    V v{};
    for (index_t i = 0; i < elements; ++i) v[i] = p[i];
    return v;
  }
}
/// A vector of packed elements for neighbouring columns; `elements` rows are left, `step` apart.
template <class V, class T, class From>
WEFT_INLINE V packed_across(const From* p, index_t step, index_t elements) {
  if constexpr (std::is_same_v<T, bf16_pair>) {
    using halves = simd::rebind<V, std::uint16_t>;
    const auto row = [](const From* x) { return simd::convert<std::uint32_t>(load_packed<halves>(x)); };
    return elements > 1 ? row(p) | row(p + step) << 16 : row(p);
  } else {
    return (void)step, (void)elements, simd::load_stored<V>(p);
  }
}

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

/// Columns [j0, j0 + columns) of B as one panel for `depth` packed elements, padded with zeros.
template <class T, class From>
void pack_panel(const matrix<From>& b, index_t k0, index_t depth, index_t elements, index_t j0, index_t columns, T* to) {
  using B = blocking<T>;
  using L = lane_of<T>;
  using V = simd::vec<L, B::lanes>;
  constexpr index_t n = elements_in<T>;
  const From* from = b.data + k0 * b.row + j0 * b.column;
  const auto lanes_of = [&](index_t k, index_t j) { return reinterpret_cast<L*>(to + k * B::tile_columns + j); };
  if (b.column == 1 && columns == B::tile_columns) {
    for (index_t k = 0; k < depth; ++k)
      for (index_t j = 0; j < B::tile_columns; j += B::lanes)
        simd::store(lanes_of(k, j), packed_across<V, T>(from + k * n * b.row + j, b.row, elements - k * n));
  } else if (b.row == 1 && b.column != 1) {
    for (index_t j = 0; j < B::tile_columns; j += B::lanes)
      for (index_t k = 0; k < depth; k += B::lanes) {
        V square[B::lanes];
        for (index_t l = 0; l < B::lanes; ++l)
          square[l] = j + l < columns ? packed_along<V, T>(from + (j + l) * b.column + k * n, elements - k * n) : V{};
        transpose(square);
        for (index_t l = 0; l < std::min<index_t>(B::lanes, depth - k); ++l) simd::store(lanes_of(k + l, j), square[l]);
      }
  } else {
    for (index_t k = 0; k < depth; ++k)
      for (index_t j = 0; j < B::tile_columns; ++j)
        to[k * B::tile_columns + j] =
            j < columns ? packed_at<T>(from + k * n * b.row + j * b.column, b.row, elements - k * n) : T{};
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

/// Sums of a tile as elements of C.
template <class T, class Out>
void store_tile(const sum_of<T>* sums, Out* c, index_t c_row, int height, index_t columns) {
  using B = blocking<T>;
  using V = simd::vec<sum_of<T>, B::lanes>;
  for (int i = 0; i < height; ++i, sums += B::tile_columns, c += c_row) {
    index_t j = 0;
    for (; j + B::lanes <= columns; j += B::lanes) simd::store_rounded(c + j, simd::load<V>(sums + j));
    for (; j < columns; ++j) c[j] = static_cast<Out>(sums[j]);
  }
}

struct block_range {
  index_t i0, i1, j0, j1;
};

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
  const index_t parts = (depth + B::depth - 1) / B::depth;
  index_t part = (depth + parts - 1) / std::max<index_t>(parts, 1);
  if (parts > 1) part = (part + B::lanes - 1) / B::lanes * B::lanes;
  const index_t block_rows = B::block_rows();
  const index_t a_rows = std::min(block_rows, range.i1 - range.i0) + B::tile_rows;
  const index_t a_space = (a_rows * std::max<index_t>(B::packed_row, B::depth * B::packed_column / B::tile_rows + 1) + 15) / 16 * 16;
  const index_t b_space = B::block_columns * (B::depth + B::lanes);
  const index_t panels = (range.j1 - range.j0 + B::tile_columns - 1) / B::tile_columns;
  const index_t sums_space = direct ? 0 : parts > 1 ? (a_rows / B::tile_rows + 1) * panels * tile_size : tile_size;
  T* a_packed = static_cast<T*>(scratch.get(static_cast<std::size_t>(a_space + b_space + 16 + sums_space) * sizeof(T)));
  T* b_packed = a_packed + a_space;
  [[maybe_unused]] auto* sums = reinterpret_cast<sum_of<T>*>(b_packed + b_space);
  const bool by_column = a.row == 1 && a.column != 1;
  // Rows of A that are contiguous are read where they are, unless they all fall into the same sets of the caches.
  const bool a_in_place = std::is_same_v<T, From> && a.column == 1 && a.row * static_cast<index_t>(sizeof(From)) % 4096 != 0;
  const index_t a_row = by_column ? 1 : a_in_place ? a.row : B::packed_row, a_column = by_column ? B::packed_column : 1;
  const index_t a_tile = by_column ? B::packed_column * B::depth : B::tile_rows * a_row;
  // With few rows, packing B costs more than it saves.
  const bool b_in_place = std::is_same_v<T, From> && b.column == 1 && range.i1 - range.i0 <= 64;
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
        index_t panel_row = B::tile_columns;
        if (b_in_place && columns == micro_kernels<T>::vectors_for(columns) * B::lanes) {
          if constexpr (std::is_same_v<T, From>) panel = b.data + k0 * b.row + j0;
          panel_row = b.row;
        } else {
          pack_panel<T>(b, k0 * n, k, left, j0, columns, b_packed);
        }
        for (index_t t = 0; t < rows; t += B::tile_rows) {
          const int height = static_cast<int>(std::min<index_t>(B::tile_rows, rows - t));
          const T* tile = tiles + t / B::tile_rows * a_tile;
          Out* out = c.data + (i0 + t) * c.row + j0;
          if constexpr (direct) {
            multiply_tile<T>(k, tile, a_row, a_column, panel, panel_row, out, c.row, height, columns, k0 > 0);
          } else {
            auto* sum = parts > 1 ? sums + (t / B::tile_rows * panels + (j0 - range.j0) / B::tile_columns) * tile_size : sums;
            micro_kernels<T>::run(height, micro_kernels<T>::vectors_for(columns), k, tile, a_row, a_column, panel, panel_row, sum,
                                  B::tile_columns, k0 > 0);
            if (k0 + k == depth) store_tile<T>(sum, out, c.row, height, columns);
          }
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

/// C = A B, with A [m, k], B [k, n] and C [m, n] in row-major order. C has the type of the operands,
/// or f32 where those are bf16 or f16.
template <class From, class Out>
void multiply(const gemm_size& size, const matrix<From>& a, const matrix<From>& b,
              const result_matrix<Out>& c, executor& threads) {
  using T = typename detail::packing<From>::type;
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
    detail::multiply_block(range, size.k, a, b, c, scratch);
  });
}

}  // namespace WEFT_ISA
}  // namespace weft::cpu
