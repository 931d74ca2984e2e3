// SPDX-License-Identifier: MIT
// The calling convention of fused kernels, on every device.
//
// The space of a kernel is `extent[0..order)`. The last dim is the row; the others count rows. If a kernel
// folds columns, the folded dims are directly before the last one; if it folds rows as well, it folds all
// dims before the last.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include <weft/base/dtype.hpp>
#include <weft/shape/shape.hpp>

namespace weft {

/// Maximum number of buffers and of scalars of a kernel.
inline constexpr int max_arguments = 24;
inline constexpr int max_numbers = 16;

/// Buffers, strides, scalars and extents of a kernel.
struct kernel_args {
  void* pointer[max_arguments];
  index_t stride[max_arguments][max_order];  // in elements, by dim of the space
  index_t extent[max_order];
  any_number number[max_numbers];
  int arguments = 0;
  int order = 1;
  int folded = 0;  // number of dims before the last that are folded
  index_t row_size() const { return extent[order - 1]; }
  index_t rows() const { return product(0, order - 1 - folded); }  // rows of the result if columns are folded
  index_t folded_rows() const { return product(order - 1 - folded, order - 1); }  // per row of the result

  /// Moves the dims `first` to `last` - 1 to just before the last dim.
  void move_before_last(int first, int last) {
    std::rotate(extent + first, extent + last, extent + order - 1);
    for (int a = 0; a < arguments; ++a)
      std::rotate(stride[a] + first, stride[a] + last, stride[a] + order - 1);
  }

 private:
  index_t product(int first, int last) const {
    index_t n = 1;
    for (int d = first; d < last; ++d) n *= extent[d];
    return n;
  }
};

/// The offset of a row in each argument, in elements.
struct row_offsets {
  index_t at[max_arguments];
};
/// `base` and the offsets of row `row`, counted over dims first to last - 1.
inline row_offsets offsets_of(const kernel_args& args, index_t row, int first, int last,
                              row_offsets base = {}) {
  for (int d = last; d-- > first;) {
    const index_t i = row % args.extent[d];
    row /= args.extent[d];
    for (int a = 0; a < args.arguments; ++a) base.at[a] += i * args.stride[a][d];
  }
  return base;
}

/// Blockwise computation of long rows, or of many rows that are folded: each sweep of the code runs over all
/// blocks before the next sweep, and the partial results of every block are stored in between.
struct fold_blocks {
  int phase;             // the sweep to compute; the number of sweeps for what follows
  index_t block, count;  // index of this block, number of blocks
  void* folds;           // for rows: 8 bytes per block and fold; for columns: the `sums` of all blocks
};

/// The part of the space that one call computes.
struct kernel_range {
  index_t row_begin, row_end;
  index_t begin, end;  // within a row
  void* scratch;       // scratch_size units for each scratch row
  const fold_blocks* blocks = nullptr;
  void* sums = nullptr;  // scratch_size units for each fold of columns
  void* sums_of_run = nullptr;  // the same for the sums of run_of_rows rows, if there are more rows
};

/// This many rows are folded into a sum of their own before it is folded with that of the previous rows: the
/// resulting short chains of additions keep long sums accurate.
inline constexpr index_t run_of_rows = 128;

/// Scratch memory for a row of `size` elements, in units of 8 bytes, rounded up to vectors of 64 bytes,
/// because kernels store whole vectors.
constexpr index_t scratch_size(index_t size) { return (size + 7) / 8 * 8; }

/// A kernel compiled for the CPU.
using kernel_function = void (*)(const kernel_args&, const kernel_range&);

/// How the space of a kernel may be divided among threads: by any elements; by whole rows if rows are
/// reduced, or by blocks of rows if columns are reduced as well; or by rows and columns of a reduction over
/// columns.
enum class kernel_division : std::uint8_t { elements, rows, columns };

/// A kernel in all forms that devices may need, with its arguments.
struct kernel_call {
  std::span<const std::uint64_t> instructions;  // canonical code, see lower/code.hpp
  kernel_function function = nullptr;    // compiled for this CPU
  kernel_division division{};
  int scratch_rows = 0;
  int sweeps = 0, folds = 0, column_folds = 0;  // of the code
  bool joins = false;         // launched together with the previous one
  bool fixed_row = false;     // whether the size of a row is the same in every run of the program
  void* scratch = nullptr;    // device memory of backend::scratch_bytes
  kernel_args args;
};

/// How devices with groups of work items fold columns: blocks of rows are folded in parallel, and then their
/// partial results, of 8 bytes each, in an order that is fixed for this number of blocks. The number depends
/// only on sizes, so that results are the same on every device. If rows are folded, too, a group computes a
/// block, row by row; otherwise an item computes one or a few columns of a block, of at most `most_rows` rows
/// if memory allows, so that long sums stay accurate.
struct column_blocks {
  static constexpr index_t wanted_items = index_t{1} << 20, least_rows = 32, most_rows = 512,  // of an item
      most_groups = 2048, rows_of_group = 8, most_scratch = index_t{1} << 27;
  static constexpr int joined_columns = 8;  // of a group that adds partial results
  index_t blocks = 1, scratch_bytes = 0;
  explicit column_blocks(const kernel_call& call) {
    const index_t columns = std::max<index_t>(call.args.rows() * call.args.row_size(), 1),
                  folded = call.args.folded_rows(), of_block = columns * 8 * call.column_folds;
    const auto at_most = [&](index_t n, index_t rows) {
      blocks = std::clamp<index_t>(n, 1, std::max<index_t>(folded / rows, 1));
    };
    const bool by_rows = call.division == kernel_division::rows;
    if (by_rows) at_most(std::min(most_groups, most_scratch / of_block), rows_of_group);
    else
      at_most(std::max(wanted_items / columns, std::min(folded / most_rows, most_scratch / of_block)),
              least_rows);
    if (by_rows || blocks > 1) scratch_bytes = blocks * of_block;
  }
};

/// How such devices compute a kernel over rows: each group computes one row, or block of rows, at a time. Its
/// items keep their elements of scratch rows, and their sums of columns, in registers if a row has few
/// elements for each of 64 items, or of 256. Otherwise a group needs 8 bytes of scratch memory per element of
/// each scratch row; fewer groups run than the device has room for if they would need more than
/// `most_scratch` bytes in all. A group then has as many items as possible, so that few rows are in progress
/// and a row that is read again is still in a cache. `threads`: the maximum number of items in a group of the
/// device.
struct row_groups {
  static constexpr int least_items = 64, most_items = 1024;  // of a group
  static constexpr index_t most = 4096;
  static constexpr index_t most_scratch = index_t{1} << 27;
  static constexpr index_t most_elements = 32, most_registers = 128;  // per item
  int items = least_items;
  index_t groups = 0, scratch_bytes = 0;
  bool in_registers = false;
  explicit row_groups(const kernel_call& call, int threads = most_items)
      : groups(call.column_folds > 0 ? column_blocks(call).blocks : std::min(call.args.rows(), most)) {
    const auto fits = [&](int n) {
      const index_t elements = (call.args.row_size() + n - 1) / n;
      return elements <= most_elements &&
             elements * (call.scratch_rows + call.column_folds) <= most_registers;
    };
    constexpr int more_items = 4 * least_items;
    if (!fits(items) && threads >= more_items && fits(more_items)) items = more_items;
    in_registers = fits(items);
    if (in_registers) return;
    while (2 * items <= std::min(threads, most_items)) items *= 2;
    const index_t of_group = std::max<index_t>(call.args.row_size(), 1) * 8 * call.scratch_rows;
    if (of_group > 0) groups = std::min(groups, std::max<index_t>(most_scratch / of_group, 1));
    scratch_bytes = groups * of_group;
  }
};

}  // namespace weft
