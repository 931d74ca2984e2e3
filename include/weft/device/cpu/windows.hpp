// SPDX-License-Identifier: MIT
// Native ops on windows of the last two dims on the CPU: op/convolution.hpp.
#pragma once

#include <algorithm>

#include <weft/device/cpu/executor.hpp>
#include <weft/device/native.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

namespace detail {
/// Calls f(plane, scratch) for each of `planes`, in parallel if that is worthwhile; `work` is the number of
/// elements that one plane reads.
template <class F>
void for_each_plane(executor& threads, index_t planes, index_t work, const F& f) {
  const index_t tasks = planes * work < 65536 ? 1 : std::min<index_t>(planes, 4 * threads.threads());
  threads.parallel_for(tasks, [&](index_t task, scratch_memory& scratch) {
    for (index_t p = planes * task / tasks; p < planes * (task + 1) / tasks; ++p) f(p, scratch);
  });
}
/// The same for every index of the dims before the last two of the result.
template <class F>
void for_each_plane(const native_call& call, index_t work, const F& f) {
  const strided& out = call.out[0];
  index_t planes = 1;
  for (int d = 0; d < out.extents.order - 2; ++d) planes *= out.extents[d];
  for_each_plane(call.threads, planes, work, [&](index_t plane, scratch_memory&) { f(plane); });
}
}  // namespace detail

/// in: g [..., windows, windows, height, width]; out: [..., v0, v1], where each element is the sum of those
/// of g that are windows on it, in the order of their place in a window. v2 packs the steps between windows,
/// v3 those within one.
template <class T>
void fold_windows(const native_call& call) {
  const strided &g = call.in[0], &out = call.out[0];
  const height_width step = height_width::of(call.at[2]), inner = height_width::of(call.at[3]);
  const int order = g.extents.order;
  const index_t extent[] = {g.extents[order - 4], g.extents[order - 3], g.extents[order - 2],
                            g.extents[order - 1]},
                *const stride = g.stride + order - 4, height = out.extents[order - 4],
                width = out.extents[order - 3];
  if constexpr (!std::is_same_v<T, bool>)
    detail::for_each_plane(call, extent[0] * extent[1] * extent[2] * extent[3], [&](index_t plane) {
      const T* const from = g.data<const T>() + element_offset(g.extents, g.stride, 0, order - 4, plane);
      T* const to = out.data<T>() + plane * height * width;
      if (!out.adds) std::fill_n(to, height * width, T{});
      for (index_t k = 0; k < extent[2]; ++k)
        for (index_t l = 0; l < extent[3]; ++l)
          for (index_t i = 0; i < extent[0]; ++i) {
            const T* const row = from + i * stride[0] + k * stride[2] + l * stride[3];
            T* const sums = to + (i * step.height + k * inner.height) * width + l * inner.width;
            if (stride[1] == 1 && step.width == 1)
              for (index_t j = 0; j < extent[1]; ++j) sums[j] = static_cast<T>(sums[j] + row[j]);
            else
              for (index_t j = 0; j < extent[1]; ++j)
                sums[j * step.width] = static_cast<T>(sums[j * step.width] + row[j * stride[1]]);
          }
    });
}

/// in: x [..., H, W]; out: i64 [..., windows, windows], the position in H W of the first of the largest
/// elements of a window, or of a NaN. v0 packs the size of a window, v1 the steps, v2 the padding.
template <class T>
void arg_window_max(const native_call& call) {
  const strided &x = call.in[0], &out = call.out[0];
  const height_width size = height_width::of(call.at[0]), step = height_width::of(call.at[1]),
                     padding = height_width::of(call.at[2]);
  const int order = x.extents.order;
  const index_t height = x.extents[order - 2], width = x.extents[order - 1], rows = out.extents[order - 2],
                columns = out.extents[order - 1], row = x.stride[order - 2], column = x.stride[order - 1];
  detail::for_each_plane(call, rows * columns * size.height * size.width, [&](index_t plane) {
    const T* const from = x.data<const T>() + element_offset(x.extents, x.stride, 0, order - 2, plane);
    auto* to = out.data<std::int64_t>() + plane * rows * columns;
    for (index_t i = 0; i < rows; ++i)
      for (index_t j = 0; j < columns; ++j, ++to) {
        const index_t top = i * step.height - padding.height, left = j * step.width - padding.width;
        const index_t i0 = std::max<index_t>(top, 0), i1 = std::min(height, top + size.height),
                      j0 = std::max<index_t>(left, 0), j1 = std::min(width, left + size.width);
        index_t best = i0 * width + j0;
        T largest = from[i0 * row + j0 * column];
        for (index_t k = i0; k < i1; ++k)
          for (index_t l = j0; l < j1; ++l) {
            const T v = from[k * row + l * column];
            if (!(v > largest) && (v == v || largest != largest)) continue;
            best = k * width + l;
            largest = v;
          }
        *to = best;
      }
  });
}

}  // namespace WEFT_ISA
}  // namespace weft::cpu
