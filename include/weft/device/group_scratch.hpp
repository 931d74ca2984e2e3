// SPDX-License-Identifier: MIT
// The scratch memory of kernels and native ops on devices with groups of work items.
#pragma once

#include <weft/device/kernel.hpp>
#include <weft/device/sorted_lines.hpp>
#include <weft/device/sorted_rows.hpp>

namespace weft {

/// The scratch memory of a kernel: partial results of columns, then scratch rows. `threads`: the maximum
/// number of items in a group of the device, with which the kernel must be launched, too.
inline std::size_t group_scratch_bytes(const kernel_call& call, int threads = row_groups::most_items) {
  index_t bytes = 0;
  if (call.column_folds > 0) bytes += column_blocks(call).scratch_bytes;
  if (call.division == kernel_division::rows) bytes += row_groups(call, threads).scratch_bytes;
  return static_cast<std::size_t>(bytes);
}

/// The scratch memory of a native op: for index_add, see sorted_rows; for argsort, sorted_lines; for the
/// derivative of attention in bf16 or f16, one f32 per log-sum, i.e. per query and head.
inline std::size_t group_scratch_bytes(const native_code& code, const native_operands& operands) {
  index_t bytes = 0;
  if (code.op == native_op::index_add) bytes = sorted_rows(operands).scratch_bytes;
  if (code.op == native_op::argsort) bytes = sorted_lines(operands).scratch_bytes;
  if (code.op == native_op::attention_backward && is_narrow(operands.in[0].type))
    bytes = 4 * operands.in[4].size();
  return static_cast<std::size_t>(bytes);
}

}  // namespace weft
