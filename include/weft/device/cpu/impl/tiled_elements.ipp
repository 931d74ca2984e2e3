// SPDX-License-Identifier: MIT
// Definitions of <weft/device/cpu/tiled_elements.hpp>.
#pragma once

#include <algorithm>
#include <cstring>

#include <weft/device/cpu/tiled_elements.hpp>
#include <weft/device/cpu/transpose.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

namespace detail {

inline constexpr index_t tile_rows = 32, tile_columns = 128;  // 16 KB of f32
inline constexpr int most_transposed = 2;  // operands; others are transposed when the tile is computed

/// The same as transpose_tile, of at most as many rows and columns as a vector has lanes.
template <class T, int... L>
WEFT_INLINE void transpose_square(const T* from, index_t stride, T* to, index_t rows, index_t columns,
                                  std::integer_sequence<int, L...>) {
  constexpr int lanes = sizeof...(L);
  using V = simd::vec<T, lanes>;
  if (rows == lanes && columns == lanes) {
    V square[] = {simd::load<V>(from + L * stride)...};
    transpose(square);
    (simd::store(to + L * tile_columns, square[L]), ...);
  } else {
    V square[std::size_t{lanes}]{};
    for (index_t k = 0; k < columns; ++k) square[k] = simd::load_some<V>(from + k * stride, rows);
    transpose(square);
    for (index_t k = 0; k < rows; ++k) simd::store_some(to + k * tile_columns, square[k], columns);
  }
}

/// to[i * tile_columns + j] = from[i + j * stride] for i < rows, j < columns, in elements of type T.
template <class T>
void transpose_tile(const T* from, index_t stride, T* to, index_t rows, index_t columns) {
  if constexpr (sizeof(T) >= 4) {
    constexpr int lanes = vector_bytes / static_cast<int>(sizeof(T));
    for (index_t i = 0; i < rows; i += lanes)
      for (index_t j = 0; j < columns; j += lanes)
        transpose_square(from + i + j * stride, stride, to + i * tile_columns + j, std::min<index_t>(lanes, rows - i),
                         std::min<index_t>(lanes, columns - j), std::make_integer_sequence<int, lanes>{});
  } else {
    for (index_t j = 0; j < columns; ++j)
      for (index_t i = 0; i < rows; ++i) to[i * tile_columns + j] = from[i + j * stride];
  }
}
inline void transpose_tile(index_t bytes, const char* from, index_t stride, char* to, index_t rows, index_t columns) {
  const auto as = [&]<class T>(T) {
    transpose_tile(reinterpret_cast<const T*>(from), stride, reinterpret_cast<T*>(to), rows, columns);
  };
  switch (bytes) {
    case 8: as(double{}); break;
    case 4: as(float{}); break;
    case 2: as(std::uint16_t{}); break;
    default: as(std::uint8_t{});
  }
}

/// The dims of a space in the order in which they are walked, and the operands that are transposed.
struct tiled_space {
  int order[max_order]{};
  int transposed[std::size_t{most_transposed}]{}, count = 0;

  tiled_space(const kernel_args& args, const argument_access& access) {
    const int last = args.order - 1;
    int across = -1;
    for (int a = 0; a < args.arguments && count < most_transposed; ++a) {
      const index_t* const stride = args.stride[a];
      if (!access.is_loaded[a] || stride[last] == 0 || stride[last] == 1) continue;
      for (int d = 0; d < last; ++d)
        if (stride[d] == 1 && args.extent[d] >= 8 && (across < 0 || d == across)) {
          across = d;
          transposed[count++] = a;
          break;
        }
    }
    int k = 0;
    for (int d = 0; d < last; ++d)
      if (d != across) order[k++] = d;
    if (across >= 0) order[k++] = across;
    order[k] = last;
  }
};

}  // namespace detail

WEFT_DEFINE bool run_in_tiles(const kernel_args& args, const kernel_range& range, const argument_access& access,
                              kernel_function f) {
  using namespace detail;
  const int last = args.order - 1;
  if (last == 0 || args.extent[last] < 16) return false;
  const tiled_space space(args, access);
  if (space.count == 0) return false;
  const int across = space.order[last - 1];
  alignas(64) char memory[std::size_t{most_transposed}][std::size_t{tile_rows * tile_columns * 8}];
  kernel_args tile;
  tile.order = 2;
  tile.arguments = args.arguments;
  std::copy_n(args.number, max_numbers, tile.number);
  for (int a = 0; a < args.arguments; ++a) {
    tile.stride[a][0] = args.stride[a][across];
    tile.stride[a][1] = args.stride[a][last];
  }
  for (int k = 0; k < space.count; ++k) {
    tile.stride[space.transposed[k]][0] = tile_columns;
    tile.stride[space.transposed[k]][1] = 1;
  }
  for (index_t r = range.row_begin, rows = 0; r < range.row_end; r += rows) {
    index_t rest = r, base[max_arguments]{};
    for (int d = last; d-- > 0;) {
      const index_t extent = args.extent[space.order[d]], i = rest % extent;
      rest /= extent;
      if (d == last - 1) rows = std::min({tile_rows, extent - i, range.row_end - r});
      for (int a = 0; a < args.arguments; ++a) base[a] += i * args.stride[a][space.order[d]];
    }
    tile.extent[0] = rows;
    for (index_t c = range.begin; c < range.end; c += tile_columns) {
      const index_t columns = tile.extent[1] = std::min(tile_columns, range.end - c);
      for (int a = 0; a < args.arguments; ++a)
        tile.pointer[a] = static_cast<char*>(args.pointer[a]) + (base[a] + c * args.stride[a][last]) * access.bytes[a];
      for (int k = 0; k < space.count; ++k) {
        void*& from = tile.pointer[space.transposed[k]];
        transpose_tile(access.bytes[space.transposed[k]], static_cast<const char*>(from),
                       args.stride[space.transposed[k]][last], memory[k], rows, columns);
        from = memory[k];
      }
      f(tile, {0, rows, 0, columns, nullptr});
    }
  }
  return true;
}

}  // namespace WEFT_ISA
}  // namespace weft::cpu
