// SPDX-License-Identifier: MIT
// Packing of operands of matrix products: parts are stored in the order in which they are read, in the type
// that is multiplied.
//
// bf16 and f16 are widened while they are packed; bf16 is packed as pairs if the machine can multiply pairs.
#pragma once

#include <unistd.h>

#include <algorithm>

#include <weft/device/cpu/matrix.hpp>
#include <weft/device/cpu/transpose.hpp>
#include <weft/device/multiply.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

namespace detail {

/// Rows i0 to i1 - 1 and columns j0 to j1 - 1 of C: the work of one task.
struct block_range {
  index_t i0, i1, j0, j1;
};

/// Elements (i, k) and (i, k + 1), the first in the lower half, as the instruction that multiplies pairs
/// expects.
enum class bf16_pair : std::uint32_t {};

/// The type of packed elements, the number of elements in a packed one, and the type of sums.
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
  if constexpr (std::is_same_v<S, V>) sum = simd::multiply_add(x, y, sum);
#if defined(__AVX512BF16__)
  else asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y));
#endif
}

template <class T>
inline constexpr int packed_lanes = vector_bytes / static_cast<int>(sizeof(T));

/// Number of rows of B to prefetch, since hardware does not prefetch rows that are far apart.
inline constexpr index_t rows_ahead = 16;

/// Bytes of a core's second-level cache.
inline index_t second_cache() {
#if defined(_SC_LEVEL2_CACHE_SIZE)
  static const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (bytes > 0) return std::min<index_t>(bytes, 4 << 20);
#endif
  return 1 << 20;
}

/// The packed element that begins at `p`; from there on, `elements` remain, `step` apart.
template <class T, class From>
WEFT_INLINE T packed_at(const From* p, index_t step, [[maybe_unused]] index_t elements) {
  if constexpr (std::is_same_v<T, bf16_pair>)
    return static_cast<T>(p->bits | static_cast<std::uint32_t>(elements > 1 ? p[step].bits : 0) << 16);
  else return (void)step, static_cast<T>(*p);
}
/// The first `n` elements, widened, in a vector V; other lanes are zero.
template <class V, class From>
WEFT_INLINE V widened_some(const From* p, index_t n) {
  if constexpr (is_storage_type<From>) {
    using halves = simd::rebind<V, std::uint16_t>;
    From some[simd::lane_count<V>];
    simd::store(reinterpret_cast<std::uint16_t*>(some),
                simd::load_some<halves>(reinterpret_cast<const std::uint16_t*>(p), n));
    return simd::load_stored<V>(some);
  } else {
    return simd::load_some<V>(p, n);
  }
}
/// A vector of packed elements from contiguous ones, of which `elements` remain; other lanes are zero.
template <class V, class T, class From>
WEFT_INLINE V packed_along(const From* p, index_t elements) {
  if constexpr (std::is_same_v<T, bf16_pair>) {
    using halves = simd::vec<std::uint16_t, 2 * simd::lane_count<V>>;
    return simd::bits_as<V>(simd::load_some<halves>(reinterpret_cast<const std::uint16_t*>(p), elements));
  } else {
    return widened_some<V>(p, elements);
  }
}
/// A vector of packed elements of adjacent columns, of which `columns` remain; `elements` rows remain, `step`
/// apart.
template <class V, class T, class From>
WEFT_INLINE V packed_across(const From* p, [[maybe_unused]] index_t step, [[maybe_unused]] index_t elements,
                            index_t columns) {
  if constexpr (std::is_same_v<T, bf16_pair>) {
    using halves = simd::rebind<V, std::uint16_t>;
    const auto row = [&](const From* x) {
      return simd::convert<std::uint32_t>(
          simd::load_some<halves>(reinterpret_cast<const std::uint16_t*>(x), columns));
    };
    return elements > 1 ? row(p) | row(p + step) << 16 : row(p);
  } else {
    return widened_some<V>(p, columns);
  }
}

/// Beginning of the n-th of `parts` parts of `all` rows or columns, in whole tiles.
inline index_t part_begin(index_t all, index_t tile, index_t n, index_t parts) {
  return std::min(all, (all + tile - 1) / tile * n / parts * tile);
}

/// Rows of a tile that is packed column by column, rounded up.
inline constexpr int packed_column = 8;

/// The number of packed elements of K for which a block of a merged operand is copied to the first-level
/// cache: for tiles of A and for panels of B.
inline constexpr index_t merged_tile_depth = 128, merged_panel_depth = 32;

/// Layout of packed rows of A: distances between rows of a tile, between its columns, between tiles.
struct tile_layout {
  index_t row, column, tile;
};

/// Packs rows i0 to i0 + rows - 1 of A as tiles of Rows, for `depth` packed elements from element k0 on.
/// Tiles are stored column by column if A is.
template <class T, int Rows, class From>
void pack_tiles(const matrix<From>& a, index_t i0, index_t rows, index_t k0, index_t depth, index_t elements,
                const tile_layout& layout, T* to) {
  constexpr index_t n = elements_in<T>, lanes = packed_lanes<T>;
  if (a.is_merged()) {
    static_assert(merged_tile_depth * n <= longest_line && Rows <= longest_line);
    From copied[copied_block_size(Rows, merged_tile_depth * n)];
    for (index_t i = 0; i < rows; i += Rows)
      for (index_t k = 0; k < depth; k += merged_tile_depth) {
        const index_t some = std::min<index_t>(Rows, rows - i),
                      some_depth = std::min(merged_tile_depth, depth - k),
                      left = std::min(some_depth * n, elements - k * n);
        pack_tiles<T, Rows>(copied_block(a, i0 + i, some, k0 + k * n, left, copied), 0, some, 0, some_depth,
                            left, layout, to + i / Rows * layout.tile + k * layout.column);
      }
    return;
  }
  const From* const from = a.data + i0 * a.row + k0 * a.column;
  if (a.column == 1) {
    for (index_t i = 0; i < rows; ++i) {
      const From* const row = from + i * a.row;
      T* const packed = to + i / Rows * layout.tile + i % Rows * layout.row;
      for (index_t k = 0; k < depth; k += lanes) {
        __builtin_prefetch(row + a.row + k * n);
        simd::store_some(reinterpret_cast<lane_of<T>*>(packed + k),
                         packed_along<simd::vec<lane_of<T>, lanes>, T>(row + k * n, elements - k * n),
                         depth - k);
      }
    }
  } else if (a.row == 1) {
    constexpr index_t some = 16;  // columns at a time, each in a different page
    using V = simd::vec<lane_of<T>, packed_column>;
    for (index_t begin = 0; begin < depth; begin += some)
      for (index_t t = 0; t < rows; t += Rows)
        for (index_t k = begin; k < std::min(depth, begin + some); ++k) {
          const From* const column = from + t + k * n * a.column;
          for (index_t e = 0; e < n; ++e) __builtin_prefetch(column + (some * n + e) * a.column);
          simd::store(reinterpret_cast<lane_of<T>*>(to + t / Rows * layout.tile + k * layout.column),
                      packed_across<V, T>(column, a.column, elements - k * n, rows - t));
        }
  } else {
    for (index_t k = 0; k < depth; ++k)
      for (index_t i = 0; i < rows; ++i)
        to[i / Rows * layout.tile + i % Rows * layout.row + k] =
            packed_at<T>(from + i * a.row + k * n * a.column, a.column, elements - k * n);
  }
}

/// Packs columns j0 to j0 + columns - 1 of B as one panel of Width, for `depth` packed elements, padded with
/// zeros.
template <class T, int Width, class From>
void pack_panel(const matrix<From>& b, index_t k0, index_t depth, index_t elements, index_t j0,
                index_t columns, T* to) {
  using L = lane_of<T>;
  using V = simd::vec<L, packed_lanes<T>>;
  constexpr index_t n = elements_in<T>, lanes = packed_lanes<T>;
  if (b.is_merged()) {
    static_assert(merged_tile_depth * n <= longest_line && Width <= longest_line);
    From copied[copied_block_size(Width, merged_panel_depth * n)];
    const index_t block = std::min<index_t>(merged_panel_depth * (Width / columns), merged_tile_depth);
    for (index_t k = 0; k < depth; k += block) {
      const index_t some = std::min(block, depth - k), left = std::min(some * n, elements - k * n);
      pack_panel<T, Width>(copied_block(b, k0 + k * n, left, j0, columns, copied), 0, some, left, 0, columns,
                           to + k * Width);
    }
    return;
  }
  const From* from = b.data + k0 * b.row + j0 * b.column;
  const auto lanes_of = [&](index_t k, index_t j) { return reinterpret_cast<L*>(to + k * Width + j); };
  if (b.column == 1) {
    for (index_t k = 0; k < depth; ++k)
      for (index_t j = 0; j < Width; j += lanes) {
        const From* const at = from + k * n * b.row + j;
        for (index_t row = 0; row < n; ++row) __builtin_prefetch(at + (rows_ahead + row) * b.row);
        simd::store(lanes_of(k, j),
                    packed_across<V, T>(at, b.row, elements - k * n, std::max<index_t>(columns - j, 0)));
      }
  } else if (b.row == 1) {
    for (index_t j = 0; j < Width; j += lanes)
      for (index_t k = 0; k < depth; k += lanes) {
        V square[std::size_t{lanes}];
        for (index_t l = 0; l < lanes; ++l)
          square[l] =
              j + l < columns ? packed_along<V, T>(from + (j + l) * b.column + k * n, elements - k * n) : V{};
        transpose(square);
        for (index_t l = 0; l < std::min<index_t>(lanes, depth - k); ++l)
          simd::store(lanes_of(k + l, j), square[l]);
      }
  } else {
    for (index_t k = 0; k < depth; ++k)
      for (index_t j = 0; j < Width; ++j)
        to[k * Width + j] =
            j < columns ? packed_at<T>(from + k * n * b.row + j * b.column, b.row, elements - k * n) : T{};
  }
}

/// Stores the first `n` sums of a vector to C, or adds them to it.
template <class V, class Out>
WEFT_INLINE void store_sums(Out* c, V sum, index_t n, bool add) {
  constexpr index_t lanes = simd::lane_count<V>;
  using S = simd::lane<V>;
  if (n >= lanes) simd::store_rounded(c, add ? simd::load_stored<V>(c) + sum : sum);
  else if constexpr (std::is_same_v<S, Out>)
    simd::store_some(c, add ? simd::load_some<V>(c, n) + sum : sum, n);
  else
    for (index_t l = 0; l < n; ++l) c[l] = static_cast<Out>(add ? static_cast<S>(c[l]) + sum[l] : sum[l]);
}

/// Stores a tile of sums, in rows of Width, to C, or adds it to C.
template <int Width, class S, class Out>
void store_tile(const S* sums, Out* c, index_t c_row, index_t height, index_t columns, bool add) {
  constexpr index_t lanes = packed_lanes<S>;
  for (index_t i = 0; i < height; ++i)
    for (index_t j = 0; j < columns; j += lanes)
      store_sums(c + i * c_row + j, simd::load_some<simd::vec<S, lanes>>(sums + i * Width + j, columns - j),
                 columns - j, add);
}

/// The same for the transposed tile: its row i is column i of C.
template <int Width, class S, class Out>
void store_transposed_tile(const S* sums, Out* c, index_t c_row, index_t height, index_t columns, bool add) {
  constexpr index_t lanes = packed_lanes<S>;
  using V = simd::vec<S, lanes>;
  for (index_t j = 0; j < columns; j += lanes)
    for (index_t i = 0; i < height; i += lanes) {
      V square[std::size_t{lanes}];
      for (index_t l = 0; l < lanes; ++l)
        square[l] = i + l < height ? simd::load<V>(sums + (i + l) * Width + j) : V{};
      transpose(square);
      for (index_t l = 0; l < std::min(lanes, columns - j); ++l)
        store_sums(c + (j + l) * c_row + i, square[l], height - i, add);
    }
}

}  // namespace detail
}  // namespace WEFT_ISA
}  // namespace weft::cpu
