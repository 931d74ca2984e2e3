// SPDX-License-Identifier: MIT
// Products of bf16 on AMX tile registers: a block of C is computed 32 by 32 elements at a time, as two by two
// tiles.
#pragma once

#include <weft/device/cpu/executor.hpp>
#include <weft/device/cpu/gemm_plan.hpp>
#include <weft/device/cpu/packing.hpp>
#include <weft/device/cpu/tile_registers.hpp>

#if WEFT_HAS_TILES
namespace weft::cpu {
inline namespace WEFT_ISA {
namespace detail {

/// Sizes in packed elements, which are pairs of bf16.
struct tile_blocking {
  static constexpr int side = 16;                        // rows of a tile, and pairs in a row
  static constexpr int tile_rows = 2 * side, tile_columns = 2 * side;
  static constexpr int depth = 384;                      // rows of A stay in the first-level cache
  static constexpr int panels = 4;                       // of B, for which these rows stay there
  static constexpr int packed_row = depth + side;        // not a multiple of the cache's set stride
  /// Rows of A that fill half of the second-level cache.
  static index_t block_rows() {
    return std::max<index_t>(second_cache() / 2 / (packed_row * 4) / tile_rows, 4) * tile_rows;
  }
};

/// Computes Rows by Columns tiles of C (each 1 or 2), for `depth` pairs, a multiple of 16. Strides are in
/// bytes.
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
  if (a.is_merged()) {
    bfloat16 copied[copied_block_size(side, 2 * merged_tile_depth)];
    for (index_t i = 0; i < rows; i += side)
      for (index_t k = 0; k < depth; k += merged_tile_depth) {
        const index_t some = std::min<index_t>(side, rows - i),
                      some_depth = std::min(merged_tile_depth, depth - k),
                      left = std::max<index_t>(std::min(some_depth * 2, elements - k * 2), 0);
        pack_tile_rows(copied_block(a, i0 + i, some, k0 + 2 * k, left, copied), 0, some, 0, some_depth, left,
                       to + i * row + k);
      }
    return;
  }
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

/// A block of C, computed by one thread for all of K. Sums that do not fill a tile of C, or that have another
/// type, are kept tile by tile until the last part of K.
template <class Out>
class tile_product {
  using B = tile_blocking;

 public:
  tile_product(const block_range& range, index_t elements, const matrix<bfloat16>& a,
               const matrix<bfloat16>& b, const result_matrix<Out>& c, scratch_memory& scratch)
      : range_(range), elements_(elements), a_(a), b_(b), c_(c) {
    block_rows_ = std::min(B::block_rows(),
                           quotient_up(range.i1 - range.i0, B::tile_rows) * index_t{B::tile_rows});
    panels_ = quotient_up(range.j1 - range.j0, B::tile_columns);
    parts_ = quotient_up(elements, 2 * B::depth);
    part_ = quotient_up(quotient_up(elements, parts_), 2 * B::side) * 2 * B::side;
    a_in_place_ = !a.is_merged() && a.column == 1 && elements % (2 * B::side) == 0 && a.row * 2 % 4096 != 0;
    const index_t sums = parts_ > 1 ? block_rows_ * panels_ * B::tile_columns : tile_size;
    const index_t packed = B::panels * panel_size + block_rows_ * B::packed_row;
    sums_ = static_cast<float*>(scratch.get(static_cast<std::size_t>(4 * (sums + packed))));
    b_packed_ = reinterpret_cast<bf16_pair*>(sums_ + sums);  // all are aligned to 64 bytes
    a_packed_ = b_packed_ + B::panels * panel_size;
  }

  void multiply() const {
    const tile_registers registers;
    for (index_t i0 = range_.i0; i0 < range_.i1; i0 += block_rows_)
      for (index_t k0 = 0; k0 < elements_; k0 += part_) multiply_rows(block_at(i0, k0));
  }

 private:
  static constexpr index_t tile_size = B::tile_rows * B::tile_columns;
  static constexpr index_t panel_size = B::depth * B::tile_columns;

  /// Rows of A from i0 on, and elements of each from k0 on, as pairs: `depth` when padded to whole tiles.
  struct block {
    index_t i0, rows, in_place;  // the first rows are read in place
    index_t k0, elements, pairs, depth;
    bool is_first, is_last;  // of K
  };
  block block_at(index_t i0, index_t k0) const {
    const index_t rows = std::min(block_rows_, range_.i1 - i0), left = std::min(elements_ - k0, part_);
    const index_t pairs = quotient_up(left, 2), depth = quotient_up(pairs, B::side) * B::side;
    // Whole tiles of contiguous rows, unless the rows all map to the same cache sets.
    const index_t in_place = a_in_place_ ? rows / B::tile_rows * B::tile_rows : 0;
    return {i0, rows, in_place, k0, left, pairs, depth, k0 == 0, k0 + left == elements_};
  }
  index_t columns_of(index_t panel) const {
    return std::min<index_t>(B::tile_columns, range_.j1 - range_.j0 - panel * B::tile_columns);
  }

  /// Multiplies a block of A by all panels of B, packing as many at a time as stay in the first-level cache.
  void multiply_rows(const block& at) const {
    pack_tile_rows(a_, at.i0 + at.in_place, at.rows - at.in_place, at.k0, at.depth, at.elements, a_packed_);
    for (index_t first = 0; first < panels_; first += B::panels) {
      const index_t end = std::min(panels_, first + B::panels);
      for (index_t p = first; p < end; ++p) pack(at, p, b_packed_ + (p - first) * panel_size);
      for (index_t t = 0; t < at.rows; t += B::tile_rows)
        for (index_t p = first; p < end; ++p) multiply_tile(at, t, p, b_packed_ + (p - first) * panel_size);
    }
  }

  void pack(const block& at, index_t panel, bf16_pair* to) const {
    pack_panel<bf16_pair, B::tile_columns>(b_, at.k0, at.pairs, at.elements,
                                           range_.j0 + panel * B::tile_columns, columns_of(panel), to);
    std::fill(to + at.pairs * B::tile_columns, to + at.depth * B::tile_columns, bf16_pair{});
  }

  /// The tile of C in a panel, from row `t` of the block on.
  void multiply_tile(const block& at, index_t t, index_t panel, const bf16_pair* packed) const {
    constexpr index_t b_row = 4 * B::tile_columns;
    const bool is_in_place = t < at.in_place;
    const void* rows = a_packed_ + (t - at.in_place) * B::packed_row;
    if (is_in_place) rows = a_.data + (at.i0 + t) * a_.row + at.k0;
    const index_t a_row = is_in_place ? 2 * a_.row : 4 * B::packed_row;
    const index_t height = std::min<index_t>(B::tile_rows, at.rows - t), columns = columns_of(panel);
    Out* const out = c_.data + (at.i0 + t) * c_.row + range_.j0 + panel * B::tile_columns;
    if constexpr (std::is_same_v<Out, float>)
      if (height == B::tile_rows && columns == B::tile_columns)
        return tile_kernel<2, 2>(at.depth, rows, a_row, packed, b_row, out, 4 * c_.row,
                                 !at.is_first || c_.add);
    float* const sum = parts_ > 1 ? sums_ + t * panels_ * B::tile_columns + panel * tile_size : sums_;
    tile_kernel(height, columns, at.depth, rows, a_row, packed, b_row, sum, 4 * B::tile_columns,
                !at.is_first);
    if (at.is_last) store_tile<B::tile_columns>(sum, out, c_.row, height, columns, c_.add);
  }

  block_range range_;
  index_t elements_;
  matrix<bfloat16> a_, b_;
  result_matrix<Out> c_;
  index_t block_rows_, panels_;  // of 32 columns of C
  index_t parts_, part_;         // of K, of equal size, and the elements of one
  bool a_in_place_;
  float* sums_;
  bf16_pair *b_packed_, *a_packed_;
};

}  // namespace detail
}  // namespace WEFT_ISA
}  // namespace weft::cpu
#endif
