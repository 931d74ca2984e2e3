// SPDX-License-Identifier: MIT
// The texts of the ops with which ranks that divide positions merge their results of attention to parts of
// the keys (device/cpu/merge.hpp); device/native.hpp explains their vocabulary.
#pragma once

namespace weft::gpu {

/// Each item is one element of the results. In both texts, in1 and out1 are the log-sums, which
/// merge_log_sums_text changes afterwards.
inline constexpr const char* merge_results_text = R"(
    long line = item / in0_extent(3), h = line % in0_extent(2);
    long t = line / in0_extent(2) % in0_extent(1), b = line / in0_extent(2) / in0_extent(1);
    in1_t before = out1_load(b * out1_stride(0) + h * out1_stride(1) + t * out1_stride(2));
    in1_t added = in1_load(b * in1_stride(0) + h * in1_stride(1) + t * in1_stride(2));
    in1_t top = before > added ? before : added;
    if (top == log((in1_t)0)) continue;  // no keys so far
    in1_t both = top + log(exp(before - top) + exp(added - top));
    long to = out0_offset(item);
    out0_store(to, exp(before - both) * out0_load(to) + exp(added - both) * in0_load(in0_offset(item)));)";

/// Each item is a log-sum.
inline constexpr const char* merge_log_sums_text = R"(
    long to = out1_offset(item);
    in1_t before = out1_load(to), added = in1_load(in1_offset(item));
    in1_t top = before > added ? before : added;
    if (top != log((in1_t)0)) out1_store(to, top + log(exp(before - top) + exp(added - top)));)";

/// Each item is an element.
inline constexpr const char* add_positions_text = R"(
    long to = out0_offset(item);
    out0_store(to, out0_load(to) + in0_load(in0_offset(item)));)";

}  // namespace weft::gpu
