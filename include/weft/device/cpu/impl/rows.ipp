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

WEFT_DEFINE void index_select(const native_call& call) {
  const strided &table = call.in[0], &index = call.in[1], &out = call.out[0];
  const index_t count = index.size(), size = detail::row_size(table, 1);
  detail::check_indices(index_readers[call.at[0]], index, table.extents[0]);
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

WEFT_DEFINE void index_add(const native_call& call) {
  const strided &index = call.in[0], &rows = call.in[1], &out = call.out[0];
  const index_t count = index.size(), size = detail::row_size(out, 1);
  detail::check_indices(index_readers[call.at[1]], index, out.extents[0]);
  const bool contiguous = detail::rows_contiguous(rows, 0);
  visit_type(rows.type, [&]<class T>(T) {
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
  });
}

namespace detail {

WEFT_DEFINE index_t line_offset(const strided& t, int dim, index_t before, index_t after) {
  return element_offset(t.extents, t.stride, 0, dim, before) +
         element_offset(t.extents, t.stride, dim + 1, t.extents.order, after);
}

WEFT_DEFINE index_t index_in_line(const char* op, const strided& index, index_t line, int dim, index_t before,
                                  index_t after, index_t i, index_t extent) {
  const index_t x = index_value(index, line + i * index.stride[dim]);
  if (x < 0 || x >= extent)
    refuse_index(op, x, (before * index.extents[dim] + i) * extent_after(index.extents, dim) + after, extent);
  return x;
}

}  // namespace detail

WEFT_DEFINE void gather(const native_call& call) {
  const strided &x = call.in[0], &index = call.in[1], &out = call.out[0];
  const int dim = static_cast<int>(call.at[0]);
  visit_type(x.type, [&]<class T>(T) {
    detail::for_each_line(call, index.extents, dim, [&](index_t before, index_t after) {
      const index_t indices = detail::line_offset(index, dim, before, after);
      const T* from = x.data<const T>() + detail::line_offset(x, dim, before, after);
      T* to = out.data<T>() + detail::line_offset(out, dim, before, after);
      for (index_t i = 0; i < index.extents[dim]; ++i)
        to[i * out.stride[dim]] =
            from[x.stride[dim] *
                 detail::index_in_line("gather", index, indices, dim, before, after, i, x.extents[dim])];
    });
  });
}

WEFT_DEFINE void scatter_add(const native_call& call) {
  const strided &index = call.in[0], &source = call.in[1], &out = call.out[0];
  const int dim = static_cast<int>(call.at[0]);
  visit_type(out.type, [&]<class T>(T) {
    if constexpr (!std::is_same_v<T, bool>) {
      if (!out.adds) std::fill(out.data<T>(), out.data<T>() + out.size(), T{});
      detail::for_each_line(call, index.extents, dim, [&](index_t before, index_t after) {
        const index_t indices = detail::line_offset(index, dim, before, after);
        const T* from = source.data<const T>() + detail::line_offset(source, dim, before, after);
        T* to = out.data<T>() + detail::line_offset(out, dim, before, after);
        for (index_t i = 0; i < index.extents[dim]; ++i) {
          T& sum = to[out.stride[dim] * detail::index_in_line("scatter_add", index, indices, dim, before,
                                                              after, i, out.extents[dim])];
          sum = static_cast<T>(sum + from[i * source.stride[dim]]);
        }
      });
    }
  });
}

WEFT_DEFINE void arg_extremum(const native_call& call) {
  const strided &x = call.in[0], &out = call.out[0];
  const int dim = static_cast<int>(call.at[0]);
  const index_t count = x.extents[dim], stride = x.stride[dim],
                lines_after = detail::extent_after(x.extents, dim);
  visit_type(x.type, [&]<class T>(T) {
    const auto is_nan = [](T v) {
      if constexpr (std::is_integral_v<T>) return false;
      else return v != v;
    };
    const auto find = [&](auto comes_first) {
      detail::for_each_line(call, x.extents, dim, [&](index_t before, index_t after) {
        const T* line = x.data<const T>() + detail::line_offset(x, dim, before, after);
        index_t best = 0;
        T extreme = *line;
        for (index_t i = 1; i < count && !is_nan(extreme); ++i) {
          const T v = line[i * stride];
          if (is_nan(v) || comes_first(v, extreme)) {
            best = i;
            extreme = v;
          }
        }
        out.data<std::int64_t>()[before * lines_after + after] = best;
      });
    };
    if (call.at[1]) find([](T a, T b) { return a < b; });
    else find([](T a, T b) { return a > b; });
  });
}

}  // namespace WEFT_ISA
}  // namespace cpu
}  // namespace weft
