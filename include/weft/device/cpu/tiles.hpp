// SPDX-License-Identifier: MIT
// Products of bf16 on AMX tile registers: 16 rows of 32 elements each, multiplied by one instruction and
// summed in f32.
//
// A block of C is computed 32 by 32 at a time. Instructions are written as inline assembly, as the compilers'
// header of intrinsics takes longer to compile than all device headers of weft.
#pragma once

#include <weft/device/cpu/executor.hpp>
#include <weft/device/cpu/packing.hpp>

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__linux__)
#define WEFT_HAS_TILES 1
#include <sys/syscall.h>
#else
#define WEFT_HAS_TILES 0
#endif

namespace weft::cpu {
inline namespace WEFT_ISA {
namespace detail {

#if WEFT_HAS_TILES

/// Whether this process may use the tile registers, for which Linux requires a request, made once.
inline bool tiles_permitted() {
  constexpr int request_state = 0x1023, tile_data = 18;
  static const bool permitted = syscall(SYS_arch_prctl, request_state, tile_data) == 0;
  return permitted;
}

/// Sizes in packed elements, which are pairs of bf16.
struct tile_blocking {
  static constexpr int side = 16;                        // rows of a tile, and pairs in a row
  static constexpr int tile_rows = 2 * side, tile_columns = 2 * side;
  static constexpr int depth = 384;                      // rows of A stay in the first-level cache
  static constexpr int panels = 4;                       // of B, for which they do
  static constexpr int packed_row = depth + side;        // not a multiple of the cache's set stride
  /// Rows of A that fill half of the second-level cache.
  static index_t block_rows() {
    return std::max<index_t>(second_cache() / 2 / (packed_row * 4) / tile_rows, 4) * tile_rows;
  }
};

/// Configures this thread's tile registers as 16 rows of 64 bytes, while it exists.
class tile_registers {
 public:
  tile_registers() {
    struct alignas(64) {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } const configuration;
    asm volatile("ldtilecfg %0" ::"m"(configuration));
  }
  tile_registers(const tile_registers&) = delete;
  tile_registers& operator=(const tile_registers&) = delete;
  ~tile_registers() { asm volatile("tilerelease"); }
};

template <int Tile>
WEFT_INLINE void load_tile(const void* from, index_t row_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(row_bytes), "i"(Tile) : "memory");
}
template <int Tile>
WEFT_INLINE void store_tile(void* to, index_t row_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(row_bytes), "i"(Tile) : "memory");
}
template <int Tile>
WEFT_INLINE void clear_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(Tile));
}
template <int Sum, int A, int B>
WEFT_INLINE void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sum), "i"(A), "i"(B));
}

/// Rows by Columns tiles of C (each 1 or 2), for `depth` pairs, a multiple of 16. Strides are in bytes.
template <int Rows, int Columns>
void tile_kernel(index_t depth, const void* a, index_t a_row, const bf16_pair* b, index_t b_row, float* c,
                 index_t c_row, bool add) {
  constexpr int side = tile_blocking::side;
  const auto each_sum = [&](auto f) {
    const auto at = [&](int i, int j) {
      return reinterpret_cast<char*>(c) + i * side * c_row + j * side * 4;
    };
    f.template operator()<0>(at(0, 0));
    if constexpr (Columns == 2) f.template operator()<1>(at(0, 1));
    if constexpr (Rows == 2) f.template operator()<2>(at(1, 0));
    if constexpr (Rows == 2 && Columns == 2) f.template operator()<3>(at(1, 1));
  };
  each_sum([&]<int Sum>(char* sum) {
    if (add) load_tile<Sum>(sum, c_row);
    else clear_tile<Sum>();
  });
  const char* row = static_cast<const char*>(a);
  const char* column = reinterpret_cast<const char*>(b);
  for (index_t k = 0; k < depth; k += side, row += 64, column += side * b_row) {
    load_tile<6>(column, b_row);
    load_tile<4>(row, a_row);
    multiply_tiles<0, 4, 6>();
    if constexpr (Columns == 2) {
      load_tile<7>(column + 64, b_row);
      multiply_tiles<1, 4, 7>();
    }
    if constexpr (Rows == 2) {
      load_tile<5>(row + side * a_row, a_row);
      multiply_tiles<2, 5, 6>();
    }
    if constexpr (Rows == 2 && Columns == 2) multiply_tiles<3, 5, 7>();
  }
  each_sum([&]<int Sum>(char* sum) { store_tile<Sum>(sum, c_row); });
}

inline void tile_kernel(index_t rows, index_t columns, index_t depth, const void* a, index_t a_row,
                        const bf16_pair* b, index_t b_row, float* c, index_t c_row, bool add) {
  constexpr int side = tile_blocking::side;
  constexpr decltype(&tile_kernel<1, 1>) kernels[] = {&tile_kernel<1, 1>, &tile_kernel<1, 2>,
                                                      &tile_kernel<2, 1>, &tile_kernel<2, 2>};
  kernels[2 * (rows > side) + (columns > side)](depth, a, a_row, b, b_row, c, c_row, add);
}

/// Packs rows i0 to i0 + rows - 1 of A, `depth` pairs from element k0 on, padded with zeros.
inline void pack_tile_rows(const matrix<bfloat16>& a, index_t i0, index_t rows, index_t k0, index_t depth,
                           index_t elements, bf16_pair* to) {
  constexpr int side = tile_blocking::side, row = tile_blocking::packed_row;
  using V = simd::vec<std::uint32_t, side>;
  const auto lanes_of = [&](index_t i, index_t k) {
    return reinterpret_cast<std::uint32_t*>(to + i * row + k);
  };
  const bfloat16* const from = a.data + i0 * a.row + k0 * a.column;
  const index_t squares = a.row == 1 && a.column != 1 ? rows / side * side : 0;
  for (index_t i = 0; i < squares; i += side)
    for (index_t k = 0; k < depth; k += side) {
      V square[side];
      for (index_t l = 0; l < side; ++l) {
        const index_t left = elements - 2 * (k + l);
        square[l] = left > 0
                        ? packed_across<V, bf16_pair>(from + i + 2 * (k + l) * a.column, a.column, left, side)
                        : V{};
      }
      transpose(square);
      for (index_t l = 0; l < side; ++l) simd::store(lanes_of(i + l, k), square[l]);
    }
  for (index_t i = squares; i < rows; ++i)
    for (index_t k = 0; k < depth; k += side) {
      const index_t left = elements - 2 * k;
      V v{};
      if (a.column == 1) v = packed_along<V, bf16_pair>(from + i * a.row + 2 * k, left);
      else
        for (index_t l = 0; l < side && 2 * l < left; ++l)
          v[l] = static_cast<std::uint32_t>(
              packed_at<bf16_pair>(from + i * a.row + 2 * (k + l) * a.column, a.column, left - 2 * l));
      simd::store(lanes_of(i, k), v);
    }
}

/// Computes one block of C for all of K on one thread. Sums that do not fill a tile of C, or are of another
/// type, are kept tile by tile until the last part of K.
template <class Out>
void multiply_block_on_tiles(const block_range& range, index_t elements, const matrix<bfloat16>& a,
                             const matrix<bfloat16>& b, const result_matrix<Out>& c,
                             scratch_memory& scratch) {
  using B = tile_blocking;
  constexpr index_t tile_size = B::tile_rows * B::tile_columns, b_row = 4 * B::tile_columns;
  const auto tiles_in = [](index_t n, index_t side) { return (n + side - 1) / side; };
  const index_t block_rows =
      std::min(B::block_rows(), tiles_in(range.i1 - range.i0, B::tile_rows) * B::tile_rows);
  const index_t panels = tiles_in(range.j1 - range.j0, B::tile_columns);
  const index_t parts = std::max<index_t>(tiles_in(elements, 2 * B::depth), 1);
  const index_t part = std::max<index_t>(tiles_in(tiles_in(elements, parts), 2 * B::side), 1) * 2 * B::side;
  const index_t sums_size = parts > 1 ? block_rows * panels * B::tile_columns : tile_size;
  // The sums are first, aligned to 64 bytes.
  auto* const sums = static_cast<float*>(scratch.get(static_cast<std::size_t>(
      4 * (sums_size + B::panels * B::depth * B::tile_columns + block_rows * B::packed_row))));
  auto* const b_packed = reinterpret_cast<bf16_pair*>(sums + sums_size);
  bf16_pair* const a_packed = b_packed + B::panels * B::depth * B::tile_columns;
  // Whole tiles of contiguous rows are read in place, unless they all map to the same cache sets.
  const bool a_in_place = a.column == 1 && elements % (2 * B::side) == 0 && a.row * 2 % 4096 != 0;
  const tile_registers registers;
  for (index_t i0 = range.i0; i0 < range.i1; i0 += block_rows) {
    const index_t rows = std::min(block_rows, range.i1 - i0),
                  in_place = a_in_place ? rows / B::tile_rows * B::tile_rows : 0;
    for (index_t k0 = 0; k0 == 0 || k0 < elements; k0 += part) {
      const index_t left = std::min(elements - k0, part), pairs = tiles_in(left, 2),
                    depth = tiles_in(pairs, B::side) * B::side;
      const bool add = k0 > 0, last = k0 + left == elements;
      pack_tile_rows(a, i0 + in_place, rows - in_place, k0, depth, left, a_packed);
      for (index_t p0 = 0; p0 < panels; p0 += B::panels) {
        const index_t p1 = std::min(panels, p0 + B::panels);
        const auto columns_of = [&](index_t p) {
          return std::min<index_t>(B::tile_columns, range.j1 - range.j0 - p * B::tile_columns);
        };
        const auto panel_of = [&](index_t p) { return b_packed + (p - p0) * B::depth * B::tile_columns; };
        for (index_t p = p0; p < p1; ++p) {
          pack_panel<bf16_pair, B::tile_columns>(b, k0, pairs, left, range.j0 + p * B::tile_columns,
                                                 columns_of(p), panel_of(p));
          std::fill(panel_of(p) + pairs * B::tile_columns, panel_of(p) + depth * B::tile_columns,
                    bf16_pair{});
        }
        for (index_t t = 0; t < rows; t += B::tile_rows) {
          const index_t height = std::min<index_t>(B::tile_rows, rows - t);
          const void* tiles = a_packed + (t - in_place) * B::packed_row;
          if (t < in_place) tiles = a.data + (i0 + t) * a.row + k0;
          const index_t a_row = t < in_place ? 2 * a.row : 4 * B::packed_row;
          for (index_t p = p0; p < p1; ++p) {
            const index_t columns = columns_of(p);
            Out* const out = c.data + (i0 + t) * c.row + range.j0 + p * B::tile_columns;
            if constexpr (std::is_same_v<Out, float>)
              if (height == B::tile_rows && columns == B::tile_columns) {
                tile_kernel<2, 2>(depth, tiles, a_row, panel_of(p), b_row, out, 4 * c.row, add || c.add);
                continue;
              }
            float* const sum = parts > 1 ? sums + t * panels * B::tile_columns + p * tile_size : sums;
            tile_kernel(height, columns, depth, tiles, a_row, panel_of(p), b_row, sum, 4 * B::tile_columns,
                        add);
            if (last) store_tile<B::tile_columns>(sum, out, c.row, height, columns, c.add);
          }
        }
      }
    }
  }
}

#endif

}  // namespace detail
}  // namespace WEFT_ISA
}  // namespace weft::cpu
