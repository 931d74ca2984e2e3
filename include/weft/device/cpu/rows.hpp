// SPDX-License-Identifier: MIT
// Rows by index on the CPU: copy them out, or add them up.
#pragma once

#include <algorithm>
#include <string>

#include <weft/base/error.hpp>
#include <weft/device/cpu/executor.hpp>
#include <weft/device/native.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

namespace detail {

inline index_t index_at(const strided& t, index_t i) {
  index_t offset = 0;
  for (int d = t.extents.order; d-- > 0;) {
    offset += i % t.extents[d] * t.stride[d];
    i /= t.extents[d];
  }
  switch (t.type) {
    case dtype::i64: return t.data<const std::int64_t>()[offset];
    case dtype::i32: return t.data<const std::int32_t>()[offset];
    default: return t.data<const std::uint8_t>()[offset];
  }
}

inline index_t checked_index(const char* op, const strided& t, index_t i, index_t rows) {
  const index_t index = index_at(t, i);
  if (index < 0 || index >= rows)
    throw value_error(std::string("weft: ") + op + ": index " + std::to_string(index) +
                      " at position " + std::to_string(i) + " is outside of [0, " +
                      std::to_string(rows) + ")");
  return index;
}

/// Offset of element `i` of row `row`, the row being dims [first, order) of `t`.
inline index_t row_element(const strided& t, int first, index_t i) {
  index_t offset = 0;
  for (int d = t.extents.order; d-- > first;) {
    offset += i % t.extents[d] * t.stride[d];
    i /= t.extents[d];
  }
  return offset;
}

inline bool rows_contiguous(const strided& t, int first) {
  index_t n = 1;
  for (int d = t.extents.order; d-- > first;) {
    if (t.extents[d] != 1 && t.stride[d] != n) return false;
    n *= t.extents[d];
  }
  return true;
}

inline index_t row_size(const strided& t, int first) {
  index_t n = 1;
  for (int d = first; d < t.extents.order; ++d) n *= t.extents[d];
  return n;
}

}  // namespace detail

/// in: table [rows, ...], index [...]; out: [index..., ...].
inline void take_rows(const native_call& call) {
  const strided &table = call.in[0], &index = call.in[1], &out = call.out[0];
  const index_t count = index.size(), size = detail::row_size(table, 1);
  for (index_t i = 0; i < count; ++i) detail::checked_index("embedding", index, i, table.extents[0]);
  visit_type(table.type, [&]<class T>(T) {
    const bool contiguous = detail::rows_contiguous(table, 1);
    const index_t tasks = count * size < 65536 ? 1 : std::min<index_t>(count, 16);
    call.threads.parallel_for(tasks, [&](index_t task, scratch_memory&) {
      for (index_t i = count * task / tasks; i < count * (task + 1) / tasks; ++i) {
        const T* row = table.data<const T>() + detail::index_at(index, i) * table.stride[0];
        T* to = out.data<T>() + i * size;
        if (contiguous) std::copy(row, row + size, to);
        else
          for (index_t c = 0; c < size; ++c) to[c] = row[detail::row_element(table, 1, c)];
      }
    });
  });
}

/// in: index [...], rows [index..., ...]; out: [v0, ...]. Rows of one index are added in the order
/// of their positions; tasks divide the columns.
inline void put_rows(const native_call& call) {
  const strided &index = call.in[0], &rows = call.in[1], &out = call.out[0];
  const index_t count = index.size(), size = detail::row_size(out, 1);
  for (index_t i = 0; i < count; ++i) detail::checked_index("embedding", index, i, out.extents[0]);
  const bool contiguous = detail::rows_contiguous(rows, 0);
  visit_type(rows.type, [&]<class T>(T) {
    if constexpr (!std::is_same_v<T, bool>) {
      const index_t tasks = count * size < 65536 ? 1 : std::min<index_t>((size + 63) / 64, 16);
      call.threads.parallel_for(tasks, [&](index_t task, scratch_memory&) {
        const index_t begin = size * task / tasks, end = size * (task + 1) / tasks;
        for (index_t r = 0; r < out.extents[0]; ++r)
          std::fill(out.data<T>() + r * size + begin, out.data<T>() + r * size + end, T{});
        for (index_t i = 0; i < count; ++i) {
          T* to = out.data<T>() + detail::index_at(index, i) * size;
          const T* from = rows.data<const T>();
          if (contiguous)
            for (index_t c = begin; c < end; ++c) to[c] = static_cast<T>(to[c] + from[i * size + c]);
          else
            for (index_t c = begin; c < end; ++c)
              to[c] = static_cast<T>(to[c] + from[detail::row_element(rows, 0, i * size + c)]);
        }
      });
    }
  });
}

}  // namespace WEFT_ISA
}  // namespace weft::cpu
