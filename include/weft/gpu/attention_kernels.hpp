// SPDX-License-Identifier: MIT
// The kernels of attention for given operands: in tiles where these compute in f32 and fit into the memory
// that a group shares, else one thread a row.
#pragma once

#include <string>
#include <vector>

#include <weft/device/native.hpp>
#include <weft/gpu/attention_text.hpp>
#include <weft/gpu/attention_tiles.hpp>
#include <weft/gpu/native_text.hpp>

namespace weft::gpu {

namespace detail {

/// The tiles of a kernel: `of_rows` staged tiles of rows and `of_columns` of columns.
struct attention_tiles {
  static constexpr int rows_of_thread = 4;
  int features, depth, across;  // depth: features, padded; across: threads of a row
  int threads = 0, columns = 0;

  explicit attention_tiles(int f)
      : features(f), depth(f <= 64 ? (f + 31) / 32 * 32 : (f + 63) / 64 * 64), across(f <= 64 ? 8 : 16) {}

  index_t rows() const { return rows_of_thread * threads / across; }
  index_t bytes(int of_rows, int of_columns, bool sums_of_rows) const {
    const index_t width = depth + 4, r = rows();
    return 4 * (width * (of_rows * r + of_columns * columns) + r * (columns + 4) +
                across * (sums_of_rows ? r : columns));
  }
  /// Chooses the largest tiles that fit; false if none do.
  bool choose(index_t memory, int of_rows, int of_columns, bool sums_of_rows) {
    constexpr int most = 128;  // results of a thread, which it keeps in registers
    if (features < 1 || of_columns * depth / across * rows_of_thread > most) return false;
    constexpr int choices[][2] = {{128, 32}, {128, 16}, {64, 32}, {64, 16}, {32, 16}};
    for (const auto& [t, c] : choices) {
      threads = t;
      columns = c;
      if (bytes(of_rows, of_columns, sums_of_rows) <= memory) return true;
    }
    return false;
  }
  /// The kernel for `length` rows of each of `others` heads and batch elements.
  native_text kernel(const char* text, index_t length, index_t others) const {
    std::string words;
    const auto define = [&](const char* name, index_t value) {
      words += std::string("#define ") + name + " " + std::to_string(value) + "\n";
    };
    define("DEPTH", depth);
    define("TX", across);
    define("RM", rows_of_thread);
    define("COLUMNS", columns);
    return {text, (length + rows() - 1) / rows() * others, threads, words + attention_tiles_text};
  }
};

/// Whether attention of these operands may be computed in tiles.
inline bool computes_in_f32(const native_operands& o) { return compute_type(o.in[0].type) == dtype::f32; }
/// A text of one thread a row, which adds up in the memory of results.
inline native_text row_by_row(const char* text, const native_operands& o, index_t items) {
  if (is_narrow(o.in[0].type) && o.in[0].extents[3] > 0)
    refuse<device_error>({"weft: attention of ", name_of(o.in[0].type), " with ", o.in[0].extents[3],
                          " features: a group of threads of this device cannot share as much memory as that "
                          "takes; use f32"});
  return {text, items};
}

}  // namespace detail

/// The kernels of attention. `memory`: bytes that a group can share.
[[gnu::cold]] inline std::vector<native_text> attention_texts(const native_operands& o, index_t memory) {
  const shape& q = o.in[0].extents;
  detail::attention_tiles tiles(static_cast<int>(q[3]));
  if (detail::computes_in_f32(o) && tiles.choose(memory, 1, 1, true))
    return {tiles.kernel(attention_forward_tiles_text, q[1], q[0] * q[2])};
  return {detail::row_by_row(attention_text, o, q[0] * q[1] * q[2])};
}

/// The kernels of its derivative: the cotangents of queries, then those of keys and values.
[[gnu::cold]] inline std::vector<native_text> attention_backward_texts(const native_operands& o,
                                                                       index_t memory) {
  const shape &q = o.in[0].extents, &k = o.in[1].extents;
  detail::attention_tiles of_queries(static_cast<int>(q[3])), of_keys = of_queries;
  if (detail::computes_in_f32(o) && of_queries.choose(memory, 2, 1, true) &&
      of_keys.choose(memory, 2, 2, false))
    return {of_queries.kernel(attention_queries_tiles_text, q[1], q[0] * q[2]),
            of_keys.kernel(attention_keys_tiles_text, k[1], k[0] * k[2])};
  return {detail::row_by_row(attention_backward_text, o, q[0] * q[1] * q[2] + k[0] * k[1] * k[2])};
}

}  // namespace weft::gpu
