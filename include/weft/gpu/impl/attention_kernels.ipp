// SPDX-License-Identifier: MIT
// Definitions of <weft/gpu/attention_kernels.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/gpu/attention_kernels.hpp>

namespace weft {
namespace gpu {
namespace detail {

WEFT_DEFINE attention_tiles::attention_tiles(int f)
    : features(f), depth(f <= 64 ? (f + 31) / 32 * 32 : (f + 63) / 64 * 64), across(f <= 64 ? 8 : 16) {}

WEFT_DEFINE index_t attention_tiles::bytes(int of_rows, int of_columns, bool sums_of_rows) const {
  const index_t width = depth + 4, r = rows();
  return 4 * (width * (of_rows * r + of_columns * columns) + r * (columns + 4) +
              across * (sums_of_rows ? r : columns));
}

WEFT_DEFINE bool attention_tiles::choose(const group_limits& limits, int of_rows, int of_columns,
                                         bool sums_of_rows) {
  constexpr int most = 128;  // results of a thread, which it keeps in registers
  if (features < 1 || of_columns * depth / across * rows_of_thread > most) return false;
  constexpr int choices[][2] = {{128, 32}, {128, 16}, {64, 32}, {64, 16}, {32, 16}};
  for (const auto& [t, c] : choices) {
    threads = t;
    columns = c;
    if (t <= limits.threads && bytes(of_rows, of_columns, sums_of_rows) <= limits.memory) return true;
  }
  return false;
}

WEFT_DEFINE native_text attention_tiles::kernel(const char* text, index_t length, index_t others) const {
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

WEFT_DEFINE index_t tensor_core_tiles::bytes(int of_rows, int of_columns, int numbers) const {
  const index_t width = depth % 64 == 0 ? depth : depth + 8;
  return 2 * width * (of_rows * rows() + of_columns * columns) + 4 * numbers * columns;
}

WEFT_DEFINE native_text tensor_core_tiles::kernel(const char* text, dtype type, index_t length,
                                                  index_t others, index_t bytes) const {
  std::string words = tensor_core_words;
  if (warpgroups) words += "#define WARPGROUPS\n" + warpgroup_words(type);
  if (means) words += "#define MEANS ((GLOBAL f32*)scratch)\n";
  const auto define = [&](const char* name, const std::string& value) {
    words += std::string("#define ") + name + " " + value + "\n";
  };
  define("DEPTH", std::to_string(depth));
  define("MT", std::to_string(row_tiles));
  define("COLUMNS", std::to_string(columns));
  define("PART", std::to_string(part));
  define("ADD_PRODUCT", std::string("add_product_") + name_of(type));
  define("PAIR_OF", std::string("pair_of_") + name_of(type));
  define("NUMBER_OF", std::string(name_of(type)) + "_to_f32");
  return {text, (length + rows() - 1) / rows() * others, threads, words + attention_tensor_core_text, bytes};
}

// For warpgroups, the fastest tiles on an H200, for 1024 and 4096 positions, among those that spill no
// registers.
WEFT_DEFINE tensor_core_tiles tensor_core_tiles::of_forward(const native_operands& o,
                                                            const group_limits& limits) {
  const int depth = depth_of(o);
  if (limits.warpgroups && depth % 64 == 0) return {depth, 1, 64, 64, 128, true};
  return {depth, depth <= 64 && o.in[0].extents[1] > 64 ? 2 : 1, 64, 64};
}
WEFT_DEFINE tensor_core_tiles tensor_core_tiles::of_queries(const native_operands& o,
                                                            const group_limits& limits) {
  const int depth = depth_of(o);
  if (limits.warpgroups && depth % 64 == 0) return {depth, 1, 64, 64, 128, true};
  return {depth, 1, depth <= 64 ? 64 : 32, 32};
}
WEFT_DEFINE tensor_core_tiles tensor_core_tiles::of_keys(const native_operands& o,
                                                         const group_limits& limits) {
  const int depth = depth_of(o);
  if (limits.warpgroups && depth % 64 == 0) return {depth, 1, 64, depth == 64 ? 32 : 64, 128, true};
  return {depth, 1, depth <= 64 ? 64 : 32, 32};
}

WEFT_DEFINE bool takes_tensor_cores(const native_operands& o, const group_limits& limits) {
  const shape &q = o.in[0].extents, &k = o.in[1].extents;
  constexpr index_t most = tensor_core_tiles::most_positions;
  return is_narrow(o.in[0].type) && q[3] >= 1 && q[3] <= tensor_core_tiles::most_features && q[1] < most &&
         k[1] < most &&
         tensor_core_tiles::of_forward(o, limits).bytes(1, 4, 0) <= limits.tensor_core_memory &&
         tensor_core_tiles::of_queries(o, limits).bytes(2, 4, 0) <= limits.tensor_core_memory &&
         tensor_core_tiles::of_keys(o, limits).bytes(2, 6, 4) <= limits.tensor_core_memory;
}

WEFT_DEFINE native_text row_by_row(const char* text, const native_operands& o, index_t items) {
  if (is_narrow(o.in[0].type) && o.in[0].extents[3] > 0)
    refuse<device_error>(
        {"weft: attention of ", name_of(o.in[0].type), " with ", o.in[0].extents[3],
         " features needs more shared memory than a thread group of this device has; use f32"});
  return {text, items};
}

}  // namespace detail

WEFT_DEFINE std::vector<native_text> attention_texts(const native_operands& o, const group_limits& limits) {
  const shape& q = o.in[0].extents;
  if (detail::takes_tensor_cores(o, limits)) {
    const auto by = detail::tensor_core_tiles::of_forward(o, limits);
    return {
        by.kernel(attention_forward_tensor_core_text, o.in[0].type, q[1], q[0] * q[2], by.bytes(1, 4, 0))};
  }
  detail::attention_tiles tiles(static_cast<int>(q[3]));
  if (detail::computes_in_f32(o) && tiles.choose(limits, 1, 1, true))
    return {tiles.kernel(attention_forward_tiles_text, q[1], q[0] * q[2])};
  return {detail::row_by_row(attention_text, o, q[0] * q[1] * q[2])};
}

WEFT_DEFINE std::vector<native_text> attention_backward_texts(const native_operands& o,
                                                              const group_limits& limits) {
  const shape &q = o.in[0].extents, &k = o.in[1].extents;
  if (detail::takes_tensor_cores(o, limits)) {
    auto of_queries = detail::tensor_core_tiles::of_queries(o, limits);
    auto of_keys = detail::tensor_core_tiles::of_keys(o, limits);
    // Warps with results of more than 64 features have no registers left for the means.
    of_queries.means = of_keys.means = o.scratch && (of_keys.warpgroups || of_keys.depth <= 64);
    const index_t bytes = of_keys.means ? of_keys.bytes(2, 4, 4) : of_keys.bytes(2, 6, 4);
    const dtype type = o.in[0].type;
    return {of_queries.kernel(attention_queries_tensor_core_text, type, q[1], q[0] * q[2],
                              of_queries.bytes(2, 4, 0)),
            of_keys.kernel(attention_keys_tensor_core_text, type, k[1], k[0] * k[2], bytes)};
  }
  detail::attention_tiles of_queries(static_cast<int>(q[3])), of_keys = of_queries;
  if (detail::computes_in_f32(o) && of_queries.choose(limits, 2, 1, true) &&
      of_keys.choose(limits, 2, 2, false))
    return {of_queries.kernel(attention_queries_tiles_text, q[1], q[0] * q[2]),
            of_keys.kernel(attention_keys_tiles_text, k[1], k[0] * k[2])};
  return {detail::row_by_row(attention_backward_text, o, q[0] * q[1] * q[2] + k[0] * k[1] * k[2])};
}

}  // namespace gpu
}  // namespace weft
