// SPDX-License-Identifier: MIT
// Definitions of <weft/device/cpu/rows.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/device/cpu/rows.hpp>

namespace weft {
namespace cpu {
inline namespace WEFT_ISA {
namespace detail {

WEFT_DEFINE index_t index_value(const strided& t, index_t offset) {
  switch (t.type) {
    case dtype::i64: return t.data<const std::int64_t>()[offset];
    case dtype::i32: return t.data<const std::int32_t>()[offset];
    default: return t.data<const std::uint8_t>()[offset];
  }
}

WEFT_DEFINE void refuse_index(const char* op, index_t index, index_t position, index_t extent) {
  refuse<value_error>(
      {"weft: ", op, ": index ", index, " at position ", position, " is outside of [0, ", extent, ")"});
}

WEFT_DEFINE bool rows_contiguous(const strided& t, int first) {
  index_t n = 1;
  for (int d = t.extents.order; d-- > first;) {
    if (t.extents[d] != 1 && t.stride[d] != n) return false;
    n *= t.extents[d];
  }
  return true;
}

}  // namespace detail

WEFT_DEFINE void checked_index(const native_call& call) {
  const strided &index = call.in[0], &out = call.out[0];
  const char* const op = index_readers[call.at[1]];
  const index_t classes = call.at[0], ignored = call.at[2];
  const bool contiguous = detail::rows_contiguous(index, 0);
  const index_t tasks = index.size() < 65536 ? 1 : 16;
  call.threads.parallel_for(tasks, [&](index_t task, scratch_memory&) {
    for (index_t i = index.size() * task / tasks; i < index.size() * (task + 1) / tasks; ++i) {
      const index_t x = contiguous ? detail::index_value(index, i) : detail::index_at(index, i);
      const bool skipped = call.at[3] != 0 && x == ignored;
      out.data<std::int32_t>()[i] =
          skipped ? -1 : static_cast<std::int32_t>(detail::checked(op, x, i, classes));
    }
  });
}

}  // namespace WEFT_ISA
}  // namespace cpu
}  // namespace weft
