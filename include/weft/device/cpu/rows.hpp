// SPDX-License-Identifier: MIT
// Indexing ops on the CPU: selection of rows and elements by index, and sums by index.
#pragma once

#include <algorithm>
#include <string>

#include <weft/base/error.hpp>
#include <weft/device/cpu/executor.hpp>
#include <weft/device/cpu/lines.hpp>
#include <weft/device/native.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

namespace detail {

/// Offset of element `i` of a row that consists of dims first to order - 1 of `t`.
inline index_t row_element(const strided& t, int first, index_t i) {
  return element_offset(t.extents, t.stride, first, t.extents.order, i);
}

/// The index stored at `offset`.
index_t index_value(const strided& t, index_t offset);
/// Element `i` of a tensor of indices, in row-major order.
inline index_t index_at(const strided& t, index_t i) { return index_value(t, row_element(t, 0, i)); }

[[noreturn, gnu::cold]] void refuse_index(const char* op, index_t index, index_t position, index_t extent);
/// `index`, found at row-major `position` of the indices; throws value_error unless it is in [0, extent).
inline index_t checked(const char* op, index_t index, index_t position, index_t extent) {
  if (index < 0 || index >= extent) refuse_index(op, index, position, extent);
  return index;
}
inline void check_indices(const char* op, const strided& t, index_t extent) {
  for (index_t i = 0; i < t.size(); ++i) checked(op, index_at(t, i), i, extent);
}

bool rows_contiguous(const strided& t, int first);

/// Number of elements of the dims after `dim`.
inline index_t extent_after(const shape& s, int dim) {
  index_t n = 1;
  for (int d = dim + 1; d < s.order; ++d) n *= s[d];
  return n;
}

}  // namespace detail

/// in: index [...]; out: the same as i32. Throws value_error for an index outside [0, v0), except that if v3
/// is 1, the index v2 becomes -1.
void checked_index(const native_call& call);

/// in: table [rows, ...], index [...]; out: [index..., ...]. v0: the index_reader. Throws value_error for an
/// index out of range.
template <class T>
void index_select(const native_call& call) {
  const strided &table = call.in[0], &index = call.in[1], &out = call.out[0];
  const index_t count = index.size(), size = detail::extent_after(table.extents, 0);
  detail::check_indices(index_readers[call.at[0]], index, table.extents[0]);
  const auto row = [&](index_t i) {
    return table.data<const T>() + detail::index_at(index, i) * table.stride[0];
  };
  const bool contiguous = detail::rows_contiguous(table, 1);
  constexpr index_t block = 64;  // columns of rows whose elements are apart, as in a transposed table
  const index_t parts = contiguous ? count : (size + block - 1) / block;
  const index_t tasks = count * size < 65536 ? 1 : std::min<index_t>(parts, 16);
  call.threads.parallel_for(tasks, [&](index_t task, scratch_memory&) {
    for (index_t p = parts * task / tasks; p < parts * (task + 1) / tasks; ++p) {
      if (contiguous) {
        const T* const from = row(p);
        std::copy(from, from + size, out.data<T>() + p * size);
        continue;
      }
      const index_t first = p * block, columns = std::min(block, size - first);
      index_t offset[std::size_t{block}];
      for (index_t c = 0; c < columns; ++c) offset[c] = detail::row_element(table, 1, first + c);
      for (index_t i = 0; i < count; ++i) {
        const T* const from = row(i);
        T* const to = out.data<T>() + i * size + first;
        for (index_t c = 0; c < columns; ++c) to[c] = from[offset[c]];
      }
    }
  });
}

/// in: index [...], rows [index..., ...]; out: [v0, ...]; v1: the index_reader. Rows with the same index are
/// added in the order of their positions; tasks divide the columns.
template <class T>
void index_add(const native_call& call) {
  const strided &index = call.in[0], &rows = call.in[1], &out = call.out[0];
  const index_t count = index.size(), size = detail::extent_after(out.extents, 0);
  detail::check_indices(index_readers[call.at[1]], index, out.extents[0]);
  const bool contiguous = detail::rows_contiguous(rows, 0);
  if constexpr (!std::is_same_v<T, bool>) {
    const index_t tasks = count * size < 65536 ? 1 : std::min<index_t>((size + 63) / 64, 16);
    call.threads.parallel_for(tasks, [&](index_t task, scratch_memory&) {
      const index_t begin = size * task / tasks, end = size * (task + 1) / tasks;
      for (index_t r = 0; r < out.extents[0] && !out.adds; ++r)
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
}

namespace detail {

/// Calls f(elements) with the elements of `t`, which are indices, as pointers to their type.
template <class F>
void with_indices(const strided& t, F f) {
  switch (t.type) {
    case dtype::i64: return f(t.data<const std::int64_t>());
    case dtype::i32: return f(t.data<const std::int32_t>());
    default: return f(t.data<const std::uint8_t>());
  }
}

/// Strides of a tensor that is accessed at an index along one dim, for a loop over the tensor of indices row
/// by row, where a row is its last dim.
struct indexed {
  const shape& extents;   // of the indices
  index_t along, across;  // strides of the index, and of the next column
  index_t row_stride[max_order];

  indexed(const strided& t, const strided& index, index_t dim)
      : extents(index.extents), along(t.stride[dim]), across(t.stride[extents.order - 1]) {
    std::copy(t.stride, t.stride + extents.order, row_stride);
    row_stride[dim] = 0;
    if (dim == extents.order - 1) across = 0;
  }
  /// Offset of row number `i`, without the index.
  index_t row(index_t i) const { return element_offset(extents, row_stride, 0, extents.order - 1, i); }
};
/// Offset of row number `i` of `t`.
inline index_t row_offset(const strided& t, index_t i) {
  return element_offset(t.extents, t.stride, 0, t.extents.order - 1, i);
}

}  // namespace detail

/// in: x, index; out: like index, out[..., i, ...] = x[..., index[..., i, ...], ...] along dim v0.
template <class T>
void gather(const native_call& call) {
  const strided &x = call.in[0], &index = call.in[1], &out = call.out[0];
  const detail::indexed from(x, index, call.at[0]);
  const index_t count = index.size(), width = index.extents.last(),
                step = index.stride[index.extents.order - 1],
                extent = x.extents[static_cast<int>(call.at[0])];
  const index_t tasks = count < 65536 ? 1 : 4 * call.threads.threads();
  detail::with_indices(index, [&](const auto* indices) {
    call.threads.parallel_for(tasks, [&](index_t task, scratch_memory&) {
      const index_t end = count * (task + 1) / tasks;
      for (index_t i = count * task / tasks; i < end;) {
        const index_t row = i / width, first = row * width;
        const auto* const at = indices + detail::row_offset(index, row);
        const T* const elements = x.data<const T>() + from.row(row);
        const index_t last = std::min(first + width, end);
        for (; i < last; ++i) {
          const auto k = static_cast<index_t>(at[(i - first) * step]);
          out.data<T>()[i] =
              elements[(i - first) * from.across + detail::checked("gather", k, i, extent) * from.along];
        }
      }
    });
  });
}

/// in: index, source; out: zeros, to which each element of source is added at its index along dim v0, whose
/// extent is v1, in the order of positions. Tasks divide the groups of rows that are added to the same
/// elements, and the columns of groups.
template <class T>
void scatter_add(const native_call& call) {
  const strided &index = call.in[0], &source = call.in[1], &out = call.out[0];
  const int dim = static_cast<int>(call.at[0]), last = index.extents.order - 1;
  if constexpr (!std::is_same_v<T, bool>) {
    if (!out.adds) std::fill(out.data<T>(), out.data<T>() + out.size(), T{});
    const index_t count = index.size(), width = index.extents.last(), extent = out.extents[dim];
    if (count == 0) return;
    const index_t depth = dim == last ? 1 : index.extents[dim],                       // rows of a group
        within = dim == last ? 1 : detail::extent_after(index.extents, dim) / width;  // from row to row
    const index_t groups = count / width / depth, wanted = count < 65536 ? 1 : 4 * call.threads.threads();
    const index_t parts = dim == last ? 1 : std::clamp<index_t>(wanted / groups, 1, (width + 63) / 64),
                  tasks = std::min(wanted, groups * parts);
    const detail::indexed to(out, index, dim);
    const index_t next_index = index.stride[last], next = source.stride[last], along = to.along,
                  across = to.across;
    detail::with_indices(index, [&](const auto* indices) {
      call.threads.parallel_for(tasks, [&](index_t task, scratch_memory&) {
        for (index_t p = groups * parts * task / tasks; p < groups * parts * (task + 1) / tasks; ++p) {
          const index_t group = p / parts, begin = width * (p % parts) / parts,
                        end = width * (p % parts + 1) / parts;
          for (index_t r = 0; r < depth; ++r) {
            const index_t row = (group / within * depth + r) * within + group % within;
            const auto* at = indices + detail::row_offset(index, row) + begin * next_index;
            const T* from = source.data<const T>() + detail::row_offset(source, row) + begin * next;
            T* sums = out.data<T>() + to.row(row) + begin * across;
            for (index_t c = begin; c < end; ++c, at += next_index, from += next, sums += across) {
              const auto k = static_cast<index_t>(*at);
              T& sum = sums[detail::checked("scatter_add", k, row * width + c, extent) * along];
              sum = static_cast<T>(sum + *from);
            }
          }
        }
      });
    });
  }
}

namespace detail {
/// Stores for every line along `dim` the position of the first NaN or, if there is none, of the first element
/// v that precedes all others e: yields(e, v) holds, and yields(v, e) does not, or e is later. NaN does not
/// yield.
template <class T, class Order>
void first_along(const native_call& call, int dim, Order yields) {
  const strided& x = call.in[0];
  const index_t size = x.extents[dim], along = x.stride[dim];
  strided out = call.out[0];  // with the dim that it lacks
  out.extents = x.extents, out.extents[dim] = 1;
  set_contiguous(out);
  const auto is_nan = [](T v) {
    if constexpr (std::is_integral_v<T>) return false;
    else return v != v;
  };
  const auto in_line = [&](const T* line, auto step) {
    constexpr index_t block = 64;  // tested as a whole: few blocks change the result
    index_t best = 0;
    T extreme = *line;
    for (index_t i = 1; i < size && !is_nan(extreme);) {
      if (i + block <= size) {
        int found = 0;
        for (index_t k = 0; k < block; ++k) found |= !yields(line[(i + k) * step], extreme);
        if (!found) {
          i += block;
          continue;
        }
      }
      for (const index_t end = std::min(i + block, size); i < end && !is_nan(extreme); ++i) {
        const T v = line[i * step];
        if (!yields(v, extreme)) best = i, extreme = v;
      }
    }
    return best;
  };
  const grouped_lines groups(x.extents, dim);
  groups.for_each(call, [&](index_t group, index_t count) {
    const T* const from = x.data<const T>() + groups.offset(x, group);
    std::int64_t* const to = out.data<std::int64_t>() + groups.offset(out, group);
    if (along == 1) {
      for (index_t l = 0; l < count; ++l)
        to[l * groups.step(out)] = in_line(from + l * groups.step(x), std::integral_constant<index_t, 1>{});
      return;
    }
    const auto in_lines = [&](auto lines, auto step) {
      T extremes[std::size_t{grouped_lines::most}];
      std::int64_t best[std::size_t{grouped_lines::most}]{};
      for (index_t l = 0; l < lines; ++l) extremes[l] = from[l * step];
      for (index_t i = 1; i < size; ++i)
        for (index_t l = 0; l < lines; ++l) {
          const T v = from[i * along + l * step], extreme = extremes[l];
          const bool better = !(yields(v, extreme) || is_nan(extreme));
          best[l] = better ? i : best[l];
          extremes[l] = better ? v : extreme;
        }
      for (index_t l = 0; l < lines; ++l) to[l * groups.step(out)] = best[l];
    };
    grouped_lines::with_constants(in_lines, count, groups.step(x));
  });
}
}  // namespace detail

/// Position of the largest (v1 = 0) or smallest (v1 = 1) element along dim v0: the first NaN if there is one,
/// otherwise the first of equal elements.
template <class T>
void arg_extremum(const native_call& call) {
  const int dim = static_cast<int>(call.at[0]);
  if (call.at[1]) detail::first_along<T>(call, dim, [](T a, T b) { return a >= b; });
  else detail::first_along<T>(call, dim, [](T a, T b) { return a <= b; });
}

}  // namespace WEFT_ISA
}  // namespace weft::cpu

#ifndef WEFT_COMPILED
#include <weft/device/cpu/impl/rows.ipp>
#endif
