// SPDX-License-Identifier: MIT
// Definitions of <weft/device/cpu/tiled_elements.hpp>.
#pragma once

#include <algorithm>
#include <utility>

#include <weft/device/cpu/tiled_elements.hpp>
#include <weft/device/cpu/transpose.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

namespace detail {

inline constexpr index_t rows_of_tile = 32, columns_of_tile = 128;  // 16 KB of f32
inline constexpr index_t longest_short = 15;  // length of rows that are merged into one
inline constexpr index_t short_rows_elements = 1024, shortest_tile = 32;
inline constexpr int most_transposed = 2;  // operands; others are transposed when the tile is computed
inline constexpr int most_copied = most_transposed * (rows_of_tile * columns_of_tile / short_rows_elements);

/// Memory of the copies of operands of a tile.
struct alignas(64) tile_memory {
  char bytes[std::size_t{most_transposed * rows_of_tile * columns_of_tile * 8}];

  char* part(int k, int parts) {
    return bytes + static_cast<std::size_t>(k) * (sizeof bytes / static_cast<std::size_t>(parts));
  }
};

/// Calls f(T()) for a type T of this many bytes.
template <class F>
void with_type_of(int bytes, F f) {
  switch (bytes) {
    case 8: f(double{}); break;
    case 4: f(float{}); break;
    case 2: f(std::uint16_t{}); break;
    default: f(std::uint8_t{});
  }
}

/// The arguments of a tile, with the numbers of `args`.
inline kernel_args tile_of(const kernel_args& args, int order) {
  kernel_args tile;
  tile.order = order;
  tile.arguments = args.arguments;
  std::copy_n(args.number, max_numbers, tile.number);
  return tile;
}

inline char* address(const kernel_args& args, const argument_access& access, int a, index_t offset) {
  return static_cast<char*>(args.pointer[a]) + offset * access.bytes[a];
}

/// transpose_tile for at most as many rows and columns as a vector has lanes.
template <class T, int... L>
WEFT_INLINE void transpose_square(const T* from, index_t stride, T* to, index_t rows, index_t columns,
                                  std::integer_sequence<int, L...>) {
  constexpr int lanes = sizeof...(L);
  using V = simd::vec<T, lanes>;
  if (rows == lanes && columns == lanes) {
    V square[] = {simd::load<V>(from + L * stride)...};
    transpose(square);
    (simd::store(to + L * columns_of_tile, square[L]), ...);
  } else {
    V square[std::size_t{lanes}]{};
    for (index_t k = 0; k < columns; ++k) square[k] = simd::load_some<V>(from + k * stride, rows);
    transpose(square);
    for (index_t k = 0; k < rows; ++k) simd::store_some(to + k * columns_of_tile, square[k], columns);
  }
}

/// to[i * columns_of_tile + j] = from[i + j * stride] for i < rows, j < columns, in elements of type T.
template <class T>
void transpose_tile(const T* from, index_t stride, T* to, index_t rows, index_t columns) {
  if constexpr (sizeof(T) == 4) {
    constexpr int lanes = vector_bytes / static_cast<int>(sizeof(T));
    for (index_t i = 0; i < rows; i += lanes)
      for (index_t j = 0; j < columns; j += lanes)
        transpose_square(from + i + j * stride, stride, to + i * columns_of_tile + j,
                         std::min<index_t>(lanes, rows - i), std::min<index_t>(lanes, columns - j),
                         std::make_integer_sequence<int, lanes>{});
  } else {
    for (index_t j = 0; j < columns; ++j)
      for (index_t i = 0; i < rows; ++i) to[i * columns_of_tile + j] = from[i + j * stride];
  }
}

/// The operands that are contiguous along dim `across` and not along the last dim.
struct transposed_operands {
  int across = -1, number[std::size_t{most_transposed}]{}, count = 0;

  transposed_operands(const kernel_args& args, const argument_access& access) {
    const int last = args.order - 1;
    for (int a = 0; a < args.arguments && count < most_transposed; ++a) {
      const index_t* const stride = args.stride[a];
      if (!access.is_loaded[a] || stride[last] == 0 || stride[last] == 1) continue;
      for (int d = 0; d < last; ++d)
        if (stride[d] == 1 && args.extent[d] >= 8 && (across < 0 || d == across)) {
          across = d;
          number[count++] = a;
          break;
        }
    }
  }
};

/// to[i * size + j] = from[i * row_stride + j * stride] for i < rows, j < size. `size` may be a constant.
template <class T, class Size>
void copy_short_rows(const T* from, index_t row_stride, index_t stride, T* to, index_t rows, Size size) {
  for (index_t i = 0; i < rows; ++i, from += row_stride, to += size)
    if (stride == 0) {
      const T one = *from;
      for (index_t j = 0; j < size; ++j) to[j] = one;
    } else {
      for (index_t j = 0; j < size; ++j) to[j] = from[j * stride];
    }
}
template <class T>
void copy_short_rows(const T* from, index_t row_stride, index_t stride, T* to, index_t rows, index_t size) {
  const auto copy = [&](auto n) { copy_short_rows<T, decltype(n)>(from, row_stride, stride, to, rows, n); };
  if constexpr (sizeof(T) == 4) {
    if (size == 2) return copy(std::integral_constant<index_t, 2>{});
    if (size == 3) return copy(std::integral_constant<index_t, 3>{});
    if (size == 4) return copy(std::integral_constant<index_t, 4>{});
  }
  copy(size);
}

/// Computes many rows that are shorter than a vector as one row.
inline bool run_short_rows(const kernel_args& args, const kernel_range& range, const argument_access& access,
                           kernel_function f) {
  const int last = args.order - 1;
  const index_t size = args.extent[last],
                most_rows = std::min(short_rows_elements / size, args.extent[last - 1]);
  if (range.begin != 0 || range.end != size || most_rows * size < shortest_tile) return false;
  kernel_args tile = tile_of(args, 1);
  int copied[std::size_t{most_copied}], copies = 0;
  for (int a = 0; a < args.arguments; ++a) {
    const index_t stride = args.stride[a][last], row_stride = args.stride[a][last - 1];
    const bool is_one = access.is_loaded[a] && size > 1 && stride == 0 && row_stride == 0;
    tile.stride[a][0] = is_one ? 0 : 1;
    if (is_one || ((stride == 1 || size == 1) && row_stride == size)) continue;
    if (!access.is_loaded[a] || copies == most_copied) return false;
    copied[copies++] = a;
  }
  tile_memory memory;
  const void* source[std::size_t{most_copied}]{};
  for (index_t r = range.row_begin, rows = 0; r < range.row_end; r += rows) {
    const row_offsets base = offsets_of(args, r, 0, last);
    rows = std::min({most_rows, args.extent[last - 1] - r % args.extent[last - 1], range.row_end - r});
    tile.extent[0] = rows * size;
    for (int a = 0; a < args.arguments; ++a) tile.pointer[a] = address(args, access, a, base.at[a]);
    for (int k = 0; k < copies; ++k) {
      const int a = copied[k];
      const void* const from = std::exchange(tile.pointer[a], memory.part(k, most_copied));
      const index_t row_stride = args.stride[a][last - 1];
      const bool is_repeated = row_stride == 0;  // all rows are equal, and often those of the next tiles
      if (is_repeated && from == source[k]) continue;
      source[k] = from;
      with_type_of(access.bytes[a], [&]<class T>(T) {
        copy_short_rows(static_cast<const T*>(from), row_stride, args.stride[a][last],
                        static_cast<T*>(tile.pointer[a]), is_repeated ? most_rows : rows, size);
      });
    }
    f(tile, {0, 1, 0, rows * size, nullptr});
  }
  return true;
}

/// Computes longer rows, in tiles in which operands that lie across the rows are transposed.
inline bool run_transposed(const kernel_args& given, const kernel_range& range, const argument_access& access,
                           kernel_function f) {
  const transposed_operands transposed(given, access);
  if (transposed.count == 0) return false;
  kernel_args args = given;
  const int last = args.order - 1, across = last - 1;
  args.move_before_last(transposed.across, transposed.across + 1);
  kernel_args tile = tile_of(args, 2);
  for (int a = 0; a < args.arguments; ++a) {
    tile.stride[a][0] = args.stride[a][across];
    tile.stride[a][1] = args.stride[a][last];
  }
  for (int k = 0; k < transposed.count; ++k) {
    tile.stride[transposed.number[k]][0] = columns_of_tile;
    tile.stride[transposed.number[k]][1] = 1;
  }
  tile_memory memory;
  for (index_t r = range.row_begin, rows = 0; r < range.row_end; r += rows) {
    const row_offsets base = offsets_of(args, r, 0, last);
    rows = tile.extent[0] =
        std::min({rows_of_tile, args.extent[across] - r % args.extent[across], range.row_end - r});
    for (index_t c = range.begin; c < range.end; c += columns_of_tile) {
      const index_t columns = tile.extent[1] = std::min(columns_of_tile, range.end - c);
      for (int a = 0; a < args.arguments; ++a)
        tile.pointer[a] = address(args, access, a, base.at[a] + c * args.stride[a][last]);
      for (int k = 0; k < transposed.count; ++k) {
        const int a = transposed.number[k];
        const void* const from = std::exchange(tile.pointer[a], memory.part(k, most_transposed));
        with_type_of(access.bytes[a], [&]<class T>(T) {
          transpose_tile(static_cast<const T*>(from), args.stride[a][last], static_cast<T*>(tile.pointer[a]),
                         rows, columns);
        });
      }
      f(tile, {0, rows, 0, columns, nullptr});
    }
  }
  return true;
}

}  // namespace detail

WEFT_DEFINE bool run_in_tiles(const kernel_args& args, const kernel_range& range,
                              const argument_access& access, kernel_function f) {
  if (args.order == 1 || args.row_size() == 0) return false;
  return args.row_size() <= detail::longest_short ? detail::run_short_rows(args, range, access, f)
                                                  : detail::run_transposed(args, range, access, f);
}

}  // namespace WEFT_ISA
}  // namespace weft::cpu
