// SPDX-License-Identifier: MIT
// Indexing ops on the CPU: selection of rows and elements by index, and sums by index.
#pragma once

#include <algorithm>
#include <string>

#include <weft/base/error.hpp>
#include <weft/device/cpu/executor.hpp>
#include <weft/device/native.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

namespace detail {

/// Offset of element `i` of a row, the row being dims first to order - 1 of `t`.
inline index_t row_element(const strided& t, int first, index_t i) {
  return element_offset(t.extents, t.stride, first, t.extents.order, i);
}

/// The index stored at `offset`.
index_t index_value(const strided& t, index_t offset);
/// Element `i` of a tensor of indices, in row-major order.
inline index_t index_at(const strided& t, index_t i) { return index_value(t, row_element(t, 0, i)); }

[[noreturn, gnu::cold]] void refuse_index(const char* op, index_t index, index_t position, index_t extent);
/// `index`, at row-major `position` of the indices; throws value_error unless it is in [0, extent).
inline index_t checked(const char* op, index_t index, index_t position, index_t extent) {
  if (index < 0 || index >= extent) refuse_index(op, index, position, extent);
  return index;
}
inline void check_indices(const char* op, const strided& t, index_t extent) {
  for (index_t i = 0; i < t.size(); ++i) checked(op, index_at(t, i), i, extent);
}

bool rows_contiguous(const strided& t, int first);

inline index_t row_size(const strided& t, int first) {
  index_t n = 1;
  for (int d = first; d < t.extents.order; ++d) n *= t.extents[d];
  return n;
}

}  // namespace detail

/// in: index [...]; out: the same as i32. Throws value_error for an index outside [0, v0), except v2 if v3 is
/// 1, which becomes -1.
void checked_index(const native_call& call);

/// in: table [rows, ...], index [...]; out: [index..., ...]. v0: the index_reader. Throws value_error for an
/// index out of range.
void index_select(const native_call& call);

/// in: index [...], rows [index..., ...]; out: [v0, ...]; v1: the index_reader. Rows of one index are added
/// in the order of their positions; tasks divide the columns.
void index_add(const native_call& call);

namespace detail {

/// Number of elements of the dims before `dim`, and after it.
inline index_t extent_before(const shape& s, int dim) {
  index_t n = 1;
  for (int i = 0; i < dim; ++i) n *= s[i];
  return n;
}
inline index_t extent_after(const shape& s, int dim) {
  index_t n = 1;
  for (int i = dim + 1; i < s.order; ++i) n *= s[i];
  return n;
}
/// Calls f(before, after) for every line of `s` along dim `dim`, in parallel if that is worthwhile.
template <class F>
void for_each_line(const native_call& call, const shape& s, int dim, F f) {
  const index_t after = extent_after(s, dim), lines = extent_before(s, dim) * after;
  const index_t tasks = lines * s[dim] < 65536 ? 1 : std::min<index_t>(lines, 4 * call.threads.threads());
  call.threads.parallel_for(tasks, [&](index_t task, scratch_memory&) {
    for (index_t line = lines * task / tasks; line < lines * (task + 1) / tasks; ++line)
      f(line / after, line % after);
  });
}
/// Offset of the first element of a line.
index_t line_offset(const strided& t, int dim, index_t before, index_t after);
/// Index number `i` of a line of `index` that begins at offset `line`; throws value_error if it is out of
/// range.
index_t index_in_line(const char* op, const strided& index, index_t line, int dim, index_t before,
                      index_t after, index_t i, index_t extent);

}  // namespace detail

/// in: x, index; out: like index, out[..., i, ...] = x[..., index[..., i, ...], ...] along dim v0.
void gather(const native_call& call);

/// in: index, source; out: zeros, to which each element of source is added at its index along dim v0, whose
/// extent is v1, in the order of positions.
void scatter_add(const native_call& call);

/// Position of the largest (v1 = 0) or smallest (v1 = 1) element along dim v0, the first of equal ones; the
/// first NaN if there is one.
void arg_extremum(const native_call& call);

}  // namespace WEFT_ISA
}  // namespace weft::cpu

#ifndef WEFT_COMPILED
#include <weft/device/cpu/impl/rows.ipp>
#endif
