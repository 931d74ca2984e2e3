// SPDX-License-Identifier: MIT
// Native ops on windows of the last two dims on the CPU: op/convolution.hpp.
#pragma once

#include <algorithm>

#include <weft/device/cpu/executor.hpp>
#include <weft/device/native.hpp>
#include <weft/device/simd.hpp>
#include <weft/device/storage.hpp>

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
  for_each_plane(call.threads, planes, work, f);
}

/// sums[i] += row[i], in vectors of at most Lanes elements. Uses no masks, with which short rows take 2.5
/// times as long.
template <int Lanes, class T>
void add_vectors(T* sums, const T* row, index_t n) {
  using V = simd::vec<T, Lanes>;
  index_t i = 0;
  for (; i + Lanes <= n; i += Lanes) simd::store(sums + i, simd::load<V>(sums + i) + simd::load<V>(row + i));
  if constexpr (Lanes > 1) add_vectors<Lanes / 2>(sums + i, row + i, n - i);
}
/// sums[i] += row[i * stride].
template <class T>
void add_row(T* sums, const T* row, index_t stride, index_t n) {
  if constexpr (!is_storage_type<T>)
    if (stride == 1) return add_vectors<vector_bytes / static_cast<int>(sizeof(T))>(sums, row, n);
  for (index_t i = 0; i < n; ++i) sums[i] = static_cast<T>(sums[i] + row[i * stride]);
}

/// Along one dim: windows begin to end - 1, whose element at one place lies on the image, from position
/// `first` on.
struct placed_windows {
  index_t begin, end, first;
  /// `before`: how far that element of window 0 is before the beginning of the image.
  placed_windows(index_t windows, index_t step, index_t before, index_t extent)
      : begin(before < 0 ? (step - 1 - before) / step : 0),
        end(std::min(windows, before < extent ? (extent - 1 - before) / step + 1 : 0)),
        first(begin * step + before) {}
};

/// The largest element of each window so far, and its place in the window; -1 if there is none.
template <class T>
struct window_maxima {
  static constexpr index_t most = 64;  // windows
  T largest[std::size_t{most}]{};
  std::int32_t best[std::size_t{most}];

  explicit window_maxima(index_t count) { std::fill_n(best, count, -1); }

  /// Compares windows begin to end - 1 with their elements at `place`, which are elements[j * stride]. NaN
  /// counts as the largest; of equal elements the first is kept.
  void compare(const T* elements, index_t stride, std::int32_t place, index_t begin, index_t end) {
    if constexpr (std::is_same_v<T, float>)
      if (end - begin >= 4) return compare_vectors(elements, stride, place, begin, end);
    for (index_t j = begin; j < end; ++j) {
      const T v = elements[j * stride], before = largest[j];
      if (best[j] >= 0 && !(v > before) && (v == v || before != before)) continue;
      largest[j] = v;
      best[j] = place;
    }
  }

 private:
  /// Without branches, since which element is larger is unpredictable.
  void compare_vectors(const T* elements, index_t stride, std::int32_t place, index_t begin, index_t end) {
    using V = simd::vec<float, vector_bytes / 4>;
    using I = simd::mask_of<V>;
    constexpr index_t lanes = simd::lane_count<V>;
    for (index_t j = begin; j < end; j += lanes) {
      const index_t n = std::min(lanes, end - j);
      V v{};
      if (stride == 1) v = simd::load_some<V>(elements + j, n);
      else
        for (index_t l = 0; l < n; ++l) v[l] = elements[(j + l) * stride];
      const V before = simd::load_some<V>(largest + j, n);
      const I at = simd::load_some<I>(best + j, n);
      const I takes =
          simd::less(before, v) | (~simd::equal(v, v) & simd::equal(before, before)) | simd::less(at, I{});
      simd::store_some(largest + j, simd::select(takes, v, before), n);
      simd::store_some(best + j, simd::select(takes, simd::splat<I>(place), at), n);
    }
  }
};
}  // namespace detail

/// in: g [..., windows, windows, height, width]; out: [..., v0, v1], where each element is the sum of all
/// elements of g that refer to it, in the order of their place in a window. v2 packs the steps between
/// windows, v3 the steps within one, v4 the padding.
template <class T>
void fold_windows(const native_call& call) {
  const strided &g = call.in[0], &out = call.out[0];
  const height_width step = height_width::of(call.at[2]), inner = height_width::of(call.at[3]),
                     padding = height_width::of(call.at[4]);
  const int order = g.extents.order;
  const index_t extent[] = {g.extents[order - 4], g.extents[order - 3], g.extents[order - 2],
                            g.extents[order - 1]},
                *const stride = g.stride + order - 4, height = out.extents[order - 4],
                width = out.extents[order - 3];
  // The sums of a row are kept in phases, i.e. columns that are step.width apart, so that those of adjacent
  // windows are adjacent.
  const index_t phase = step.width == 1 ? width : width / step.width + 1, row = phase * step.width;
  if constexpr (!std::is_same_v<T, bool>)
    detail::for_each_plane(
        call, extent[0] * extent[1] * extent[2] * extent[3], [&](index_t plane, scratch_memory& scratch) {
          const T* const from = g.data<const T>() + element_offset(g.extents, g.stride, 0, order - 4, plane);
          T *const to = out.data<T>() + plane * height * width, *sums = to;
          if (step.width > 1)
            sums = static_cast<T*>(scratch.get(static_cast<std::size_t>(height * row) * sizeof(T)));
          const auto each = [&](const auto& f) {
            for (index_t y = 0; y < height; ++y)
              for (index_t p = 0; p < step.width; ++p)
                for (index_t x = p, t = y * row + p * phase; x < width; x += step.width)
                  f(to[y * width + x], sums[t++]);
          };
          if (!out.adds) std::fill_n(sums, height * row, T{});
          else if (sums != to) each([](const T& element, T& sum) { sum = element; });
          for (index_t k = 0; k < extent[2]; ++k)
            for (index_t l = 0; l < extent[3]; ++l) {
              const detail::placed_windows down(extent[0], step.height, k * inner.height - padding.height,
                                                height),
                  across(extent[1], step.width, l * inner.width - padding.width, width);
              if (across.begin >= across.end) continue;
              const index_t at = across.first % step.width * phase + across.first / step.width;
              const T* const first = from + across.begin * stride[1] + k * stride[2] + l * stride[3];
              for (index_t i = down.begin, y = down.first; i < down.end; ++i, y += step.height)
                detail::add_row(sums + y * row + at, first + i * stride[0], stride[1],
                                across.end - across.begin);
            }
          if (sums != to) each([](T& element, const T& sum) { element = sum; });
        });
}

/// in: x [..., H, W]; out: i64 [..., windows, windows], the position in H W of the first of the largest
/// elements of each window, or of a NaN. v0 packs the size of a window, v1 the steps, v2 the padding.
template <class T>
void arg_window_max(const native_call& call) {
  const strided &x = call.in[0], &out = call.out[0];
  const height_width size = height_width::of(call.at[0]), step = height_width::of(call.at[1]),
                     padding = height_width::of(call.at[2]);
  const int order = x.extents.order;
  const index_t height = x.extents[order - 2], width = x.extents[order - 1], rows = out.extents[order - 2],
                columns = out.extents[order - 1], row = x.stride[order - 2], column = x.stride[order - 1];
  using maxima = detail::window_maxima<T>;
  detail::for_each_plane(
      call, rows * columns * size.height * size.width, [&](index_t plane, scratch_memory&) {
        const T* const from = x.data<const T>() + element_offset(x.extents, x.stride, 0, order - 2, plane);
        auto* to = out.data<std::int64_t>() + plane * rows * columns;
        for (index_t i = 0; i < rows; ++i)
          for (index_t begin = 0; begin < columns; begin += maxima::most) {
            const index_t count = std::min(maxima::most, columns - begin),
                          top = i * step.height - padding.height;
            maxima found(count);
            for (index_t k = std::max<index_t>(top, 0); k < std::min(height, top + size.height); ++k)
              for (index_t l = 0; l < size.width; ++l) {
                const index_t left = begin * step.width + l - padding.width;
                const detail::placed_windows inside(count, step.width, left, width);
                found.compare(from + k * row + left * column, step.width * column,
                              static_cast<std::int32_t>((k - top) * size.width + l), inside.begin,
                              inside.end);
              }
            const auto across = static_cast<std::int32_t>(size.width);
            for (index_t j = 0; j < count; ++j)
              *to++ = (top + found.best[j] / across) * width + (begin + j) * step.width - padding.width +
                      found.best[j] % across;
          }
      });
}

}  // namespace WEFT_ISA
}  // namespace weft::cpu
