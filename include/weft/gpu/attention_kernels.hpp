// SPDX-License-Identifier: MIT
// The kernels of attention for given operands: on tensor cores if these support the operands; otherwise in
// tiles if they compute in f32 and the tiles fit into the memory that a group shares; otherwise one thread
// per row.
#pragma once

#include <string>
#include <vector>

#include <weft/device/native.hpp>
#include <weft/gpu/attention_tensor_cores.hpp>
#include <weft/gpu/attention_tensor_cores_backward.hpp>
#include <weft/gpu/attention_text.hpp>
#include <weft/gpu/attention_tiles.hpp>
#include <weft/gpu/native_text.hpp>
#include <weft/gpu/tensor_core_words.hpp>
#include <weft/gpu/warpgroup_words.hpp>

namespace weft::gpu {

namespace detail {

/// The tiles of a kernel: `of_rows` staged tiles of rows and `of_columns` of columns.
struct attention_tiles {
  static constexpr int rows_of_thread = 4;
  int features, depth, across;  // depth: features, padded; across: threads per row
  int threads = 0, columns = 0;

  explicit attention_tiles(int f);

  index_t rows() const { return rows_of_thread * threads / across; }
  index_t bytes(int of_rows, int of_columns, bool sums_of_rows) const;
  /// Chooses the largest tiles that fit; returns false if none do.
  bool choose(const group_limits& limits, int of_rows, int of_columns, bool sums_of_rows);
  /// The kernel for `length` rows of each of `others` heads and batch elements.
  native_text kernel(const char* text, index_t length, index_t others) const;
};

/// The tiles of a kernel on tensor cores: of rows, of which each warp has 16 `row_tiles`, and of columns, of
/// which `part` are computed with at a time. Chosen so that the results of a thread stay in registers, and
/// that two groups fit on a multiprocessor with 164 KiB of shared memory; on one with less (8.6, 8.9 and 12.0
/// have 100 KiB), one does.
struct tensor_core_tiles {
  static constexpr int most_features = 128;
  static constexpr index_t most_positions = 1 << 30;  // for 32-bit numbers
  int depth, row_tiles, columns, part;
  int threads = 128;
  bool warpgroups = false;  // whether warpgroups multiply, and not warps
  bool means = false;       // whether scratch memory holds the means of slopes

  static tensor_core_tiles of_forward(const native_operands& o, const group_limits& limits);
  static tensor_core_tiles of_queries(const native_operands& o, const group_limits& limits);
  static tensor_core_tiles of_keys(const native_operands& o, const group_limits& limits);
  static int depth_of(const native_operands& o) {
    return static_cast<int>((o.in[0].extents[3] + 15) / 16 * 16);
  }
  int rows() const { return row_tiles * threads / 2; }
  /// Bytes of this many staged tiles, and of this many numbers for each column.
  index_t bytes(int of_rows, int of_columns, int numbers) const;
  /// The kernel for `length` rows of each of `others` heads and batch elements.
  native_text kernel(const char* text, dtype type, index_t length, index_t others, index_t bytes) const;
};
/// Whether attention of these operands is computed on tensor cores.
bool takes_tensor_cores(const native_operands& o, const group_limits& limits);

/// Whether attention of these operands may be computed in tiles.
inline bool computes_in_f32(const native_operands& o) { return compute_type(o.in[0].type) == dtype::f32; }
/// A text with one thread per row, which accumulates in the memory of the results.
native_text row_by_row(const char* text, const native_operands& o, index_t items);

}  // namespace detail

/// The kernels of attention. `limits`: those of the device.
[[gnu::cold]] std::vector<native_text> attention_texts(const native_operands& o, const group_limits& limits);

/// The kernels of its derivative: the cotangents of queries, then those of keys and values.
[[gnu::cold]] std::vector<native_text> attention_backward_texts(const native_operands& o,
                                                                const group_limits& limits);

}  // namespace weft::gpu

#ifndef WEFT_COMPILED
#include <weft/gpu/impl/attention_kernels.ipp>
#endif
