// SPDX-License-Identifier: MIT
// Operands and results of matrix products on the CPU. Rows and columns of an operand either have strides or
// are merged from dims of a tensor without a common stride (strided::merged); in that case blocks of it are
// copied when they are packed.
#pragma once

#include <algorithm>
#include <cstring>

#include <weft/device/cpu/executor.hpp>
#include <weft/device/native.hpp>
#include <weft/device/simd.hpp>
#include <weft/device/storage.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

/// Sizes of a product: C [m, n] = A [m, k] B [k, n].
struct gemm_size {
  index_t m, n, k;
};

/// The offsets of merged rows or columns; within each `run` of them, counted from the first, they are `step`
/// apart. `largest` is the largest offset, or 0.
struct merged_offsets {
  const index_t* offset = nullptr;
  index_t run = 1, step = 1, largest = 0;
};

/// Element (i, j) of a matrix is data[i * row + j * column], or data[rows->offset[i] + columns->offset[j]] if
/// rows and columns are merged; in that case the strides are those of a copy, and the smaller one is 1.
template <class T>
struct matrix {
  const T* data;
  index_t row, column;
  const merged_offsets *rows = nullptr, *columns = nullptr;

  bool is_merged() const { return rows != nullptr; }
  matrix transposed() const { return {data, column, row, columns, rows}; }
};

/// A result with contiguous rows; with `add`, the product is added to it. The results of products that share
/// their left operand can be combined into one, in pieces of `piece` columns (0: it is whole) that are `next`
/// elements apart.
template <class T>
struct result_matrix {
  T* data;
  index_t row;
  bool add = false;
  index_t piece = 0, next = 0;

  result_matrix from(index_t i, index_t j) const { return {data + i * row + j, row, add}; }
};

namespace detail {

/// Where the rows and columns of an operand are, if strides cannot express it.
class merged_matrix {
 public:
  /// For the matrices in the last two dims of `t`. `joins`: the matrices for all indices of the other dims
  /// form one, side by side. `memory`, which receives the offsets, is kept until the product is computed.
  merged_matrix(const strided& t, bool joins, scratch_memory& memory) {
    if (!t.merged && !joins) return;
    const int dims = t.extents.order - 2;
    merged_dims::side sides[2];
    for (int d = 0; joins && d < dims; ++d) sides[1].add_inner(t.extents[d], t.stride[d]);
    for (int i = 0; i < 2; ++i) {
      const merged_dims::side strides{1, {t.extents[dims + i]}, {t.stride[dims + i]}},
          &own = !t.merged ? strides
                 : i == 0  ? t.merged->rows
                           : t.merged->columns;
      for (int d = 0; d < own.order; ++d) sides[i].add_inner(own.extent[d], own.stride[d]);
    }
    const index_t count = sides[0].size() + sides[1].size();
    auto* to = static_cast<index_t*>(memory.get(static_cast<std::size_t>(count) * sizeof(index_t)));
    for (int i = 0; i < 2; ++i) {
      offsets_[i] = {to, 1, 1, 0};
      *to = 0;
      index_t made = 1;  // from the innermost dim on
      for (int d = sides[i].order; d-- > 0;) {
        const index_t extent = sides[i].extent[d], stride = sides[i].stride[d];
        if (made == 1) offsets_[i].run = extent, offsets_[i].step = stride;
        offsets_[i].largest += std::max<index_t>(stride, 0) * (extent - 1);
        for (index_t n = made; n < made * extent; ++n) to[n] = to[n - made] + stride;
        made *= extent;
      }
      to += made;
    }
  }
  merged_matrix(const merged_matrix&) = delete;
  merged_matrix& operator=(const merged_matrix&) = delete;

  /// The matrix at `data`.
  template <class T>
  matrix<T> at(const T* data, const strided& t) const {
    const int dims = t.extents.order - 2;
    if (!offsets_[0].offset) return {data, t.stride[dims], t.stride[dims + 1]};
    return {data, t.stride[dims], t.stride[dims + 1], &offsets_[0], &offsets_[1]};
  }

 private:
  merged_offsets offsets_[2];  // of rows, of columns
};

/// Elements of a line at equal distances: `count` from position `to` on, which begin at `offset`.
struct line_piece {
  index_t offset, to, count;
};

/// The pieces of elements `begin` to `begin + count` - 1 of a merged row or column.
inline int pieces_of(const merged_offsets& at, index_t begin, index_t count, line_piece* pieces) {
  int n = 0;
  index_t left = at.run - begin % at.run;
  for (index_t to = 0; to < count; to += pieces[n++].count, left = at.run)
    pieces[n] = {at.offset[begin + to], to, std::min(left, count - to)};
  return n;
}

/// Copies `count` elements that are `step` apart, and up to a vector of what follows them; only `readable`
/// elements may be read. `Contiguous`: the step is 1.
template <bool Contiguous, class T>
WEFT_INLINE void copy_piece(const T* from, index_t step, index_t count, index_t readable, T* to) {
  constexpr index_t lanes = vector_bytes / static_cast<int>(sizeof(T));
  index_t i = 0;
  if constexpr (Contiguous) {
    for (; i < count && i + lanes <= readable; i += lanes) std::memcpy(to + i, from + i, vector_bytes);
  } else if constexpr (sizeof(T) < 8) {  // steps of 2: the lower halves of pairs
    using pair = std::conditional_t<sizeof(T) == 4, std::uint64_t, std::uint32_t>;
    using half = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>;
    for (; step == 2 && i < count && 2 * i + lanes <= readable; i += lanes / 2) {
      simd::vec<pair, lanes / 2> pairs;
      std::memcpy(&pairs, from + 2 * i, sizeof pairs);
      simd::store(reinterpret_cast<half*>(to + i), simd::convert<half>(pairs));
    }
  }
  for (; i < count; ++i) to[i] = from[i * step];
}

/// Maximum number of elements in a line of a copied block.
inline constexpr index_t longest_line = 256;

/// How many elements copied_block may write: those of the block, and one vector after them.
constexpr std::size_t copied_block_size(index_t rows, index_t columns) {
  return static_cast<std::size_t>(rows * columns + 64);
}

/// Copies a block of a merged matrix, line by line in memory order. The copy's column stride is 1 only if
/// that of the matrix is.
template <class T>
matrix<T> copied_block(const matrix<T>& m, index_t i0, index_t rows, index_t j0, index_t columns, T* to) {
  const bool along_rows = m.column != 1;
  const merged_offsets &lines = along_rows ? *m.columns : *m.rows, &line = along_rows ? *m.rows : *m.columns;
  const index_t count = along_rows ? columns : rows, length = along_rows ? rows : columns,
                pitch = along_rows ? std::max<index_t>(length, 2) : length,
                end = lines.largest + line.largest + 1;
  line_piece pieces[longest_line];
  const line_piece* const behind = pieces + pieces_of(line, along_rows ? i0 : j0, length, pieces);
  const auto copy_lines = [&]<bool Contiguous>(std::bool_constant<Contiguous>) {
    const index_t* const offset = lines.offset + (along_rows ? j0 : i0);
    for (index_t k = 0; k < count; ++k)
      for (const line_piece* p = pieces; p < behind; ++p) {
        const index_t at = offset[k] + p->offset;
        copy_piece<Contiguous>(m.data + at, line.step, p->count, end - at, to + k * pitch + p->to);
      }
  };
  if (line.step == 1) copy_lines(std::true_type{});
  else copy_lines(std::false_type{});
  return along_rows ? matrix<T>{to, 1, pitch} : matrix<T>{to, pitch, 1};
}

}  // namespace detail
}  // namespace WEFT_ISA
}  // namespace weft::cpu
