// SPDX-License-Identifier: MIT
// Convolutions of each channel with its own matrix on the CPU: op/depthwise.hpp.
//
// The image of a channel is copied with zeros around it, so that a row of the result is a sum of rows of the
// copy, computed a vector at a time.
#pragma once

#include <algorithm>

#include <weft/device/cpu/packing.hpp>
#include <weft/device/cpu/windows.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {
namespace detail {

/// The sizes of the convolution of one channel; its result has `made` rows and columns.
struct depthwise_sizes {
  height_width step, inner, padding, window, image, made;

  index_t taps() const { return window.height * window.width; }
  /// Of the copy.
  index_t rows() const { return (made.height - 1) * step.height + (window.height - 1) * inner.height + 1; }
  index_t columns() const { return (made.width - 1) * step.width + (window.width - 1) * inner.width + 1; }
};

/// The copy of an image, in scratch memory. In its rows, columns that are a step apart are adjacent.
template <class T>
class padded_image {
 public:
  static constexpr int lanes = packed_lanes<T>, most_vectors = 4;  // of a row at a time
  using V = simd::vec<T, lanes>;

  /// `beside`: number of elements of additional memory, aligned for vectors.
  padded_image(const depthwise_sizes& s, scratch_memory& scratch, index_t beside)
      : s_(s),
        part_((s.columns() + s.step.width - 1) / s.step.width),
        row_(s.step.width * part_),
        size_((s.rows() * row_ + lanes - 1) / lanes * lanes + most_vectors * lanes) {
    const index_t elements = (size_ + beside + lanes - 1) / lanes * lanes;
    elements_ = static_cast<T*>(scratch.get(static_cast<std::size_t>(elements) * sizeof(T) +
                                            static_cast<std::size_t>(s.taps()) * sizeof(index_t)));
    taps_ = reinterpret_cast<index_t*>(elements_ + elements);
    for (index_t k = 0; k < s.window.height; ++k)
      for (index_t l = 0; l < s.window.width; ++l) {
        const index_t column = l * s.inner.width;
        taps_[k * s.window.width + l] =
            k * s.inner.height * row_ + column % s.step.width * part_ + column / s.step.width;
      }
  }
  T* beside() const { return elements_ + size_; }

  void copy(const T* from, index_t row, index_t column) const {
    std::fill_n(elements_, size_, T{});
    const index_t step = s_.step.width, first = s_.padding.width,
                  last = std::min(s_.columns(), first + s_.image.width);
    for (index_t r = s_.padding.height; r < std::min(s_.rows(), s_.padding.height + s_.image.height); ++r) {
      const T* const source = from + (r - s_.padding.height) * row - first * column;
      for (index_t begin = first; begin < std::min(last, first + step); ++begin) {
        T* to = elements_ + r * row_ + begin % step * part_ + begin / step;
        for (index_t c = begin; c < last; c += step) *to++ = source[c * column];
      }
    }
  }
  /// The elements that place t of the windows reads for row i of the result.
  const T* at(index_t t, index_t i) const { return elements_ + i * s_.step.height * row_ + taps_[t]; }

 private:
  const depthwise_sizes s_;
  index_t part_, row_, size_;
  T* elements_ = nullptr;
  index_t* taps_ = nullptr;
};

/// A row of the result: the sum over places t of windows of w[t] x(t).
template <int Vectors, class T>
WEFT_INLINE void convolve_row(const padded_image<T>& x, index_t i, const T* w, index_t taps, T* to,
                              index_t width, bool adds) {
  using V = typename padded_image<T>::V;
  constexpr index_t lanes = padded_image<T>::lanes;
  for (index_t j = 0; j < width; j += Vectors * lanes) {
    V sum[std::size_t{Vectors}] = {};
    for (index_t t = 0; t < taps; ++t) {
      const V weight = simd::splat<V>(w[t]);
      const T* const from = x.at(t, i) + j;
      for (int v = 0; v < Vectors; ++v)
        sum[v] = simd::multiply_add(simd::load<V>(from + v * lanes), weight, sum[v]);
    }
    for (int v = 0; v < Vectors && j + v * lanes < width; ++v)
      store_sums(to + j + v * lanes, sum[v], width - j - v * lanes, adds);
  }
}

/// Adds products of x and a row of g to the sums of `Places` places of the windows, from t on.
template <std::size_t Places, class T>
WEFT_INLINE void correlate_row(const padded_image<T>& x, index_t i, index_t t, index_t taps, const T* g,
                               index_t width, typename padded_image<T>::V (&sum)[Places]) {
  using V = typename padded_image<T>::V;
  constexpr index_t lanes = padded_image<T>::lanes;
  const T* from[Places];
  for (std::size_t p = 0; p < Places; ++p) from[p] = x.at(std::min(t + static_cast<index_t>(p), taps - 1), i);
  for (index_t j = 0; j < width; j += lanes) {
    const index_t n = std::min(lanes, width - j);
    const V factor = simd::load_some<V>(g + j, n);
    for (std::size_t p = 0; p < Places; ++p)
      sum[p] = simd::multiply_add(simd::load_some<V>(from[p] + j, n), factor, sum[p]);
  }
}

}  // namespace detail

/// in: x [B, C, H, W], w [C, height, width]; out: [B, C, v3, v4], whose element (b, c, i, j) is the sum over
/// k, l, in order, of x(b, c, i step + k inner - padding, ...) w(c, k, l). v0 packs the steps between
/// windows, v1 the steps within one, v2 the zeros above and left of x.
template <class T>
void depthwise_conv2d(const native_call& call) {
  const strided &x = call.in[0], &w = call.in[1], &out = call.out[0];
  if (out.size() == 0) return;
  const detail::depthwise_sizes sizes{height_width::of(call.at[0]), height_width::of(call.at[1]),
                                      height_width::of(call.at[2]), {w.extents[1], w.extents[2]},
                                      {x.extents[2], x.extents[3]}, {out.extents[2], out.extents[3]}};
  const index_t taps = sizes.taps(), channels = x.extents[1], width = sizes.made.width,
                pixels = sizes.made.height * width;
  detail::for_each_plane(
      call.threads, x.extents[0] * channels, taps * pixels, [&](index_t plane, scratch_memory& scratch) {
        const detail::padded_image<T> image(sizes, scratch, taps);
        const index_t channel = plane % channels;
        for (index_t t = 0; t < taps; ++t)
          image.beside()[t] = w.data<const T>()[channel * w.stride[0] + t / sizes.window.width * w.stride[1] +
                                                t % sizes.window.width * w.stride[2]];
        image.copy(x.data<const T>() + plane / channels * x.stride[0] + channel * x.stride[1], x.stride[2],
                   x.stride[3]);
        T* const to = out.data<T>() + plane * pixels;
        constexpr index_t lanes = detail::padded_image<T>::lanes;
        for (index_t i = 0; i < sizes.made.height; ++i) {
          const auto row = [&]<int Vectors>(std::integral_constant<int, Vectors>) {
            detail::convolve_row<Vectors>(image, i, image.beside(), taps, to + i * width, width, out.adds);
          };
          if (width <= lanes) row(std::integral_constant<int, 1>{});
          else if (width <= 2 * lanes) row(std::integral_constant<int, 2>{});
          else row(std::integral_constant<int, detail::padded_image<T>::most_vectors>{});
        }
      });
}

/// in: x [B, C, H, W], g [B, C, rows, columns]; out: [C, height, width], whose element (c, k, l) is the sum
/// over b, i, j of x(b, c, i step + k inner - padding, ...) g(b, c, i, j). v0 to v2 are as above; v3 packs
/// the size of a window.
template <class T>
void depthwise_weight_gradient(const native_call& call) {
  const strided &x = call.in[0], &g = call.in[1], &out = call.out[0];
  using image_type = detail::padded_image<T>;
  using V = typename image_type::V;
  constexpr int places = 6;
  const detail::depthwise_sizes sizes{height_width::of(call.at[0]), height_width::of(call.at[1]),
                                      height_width::of(call.at[2]), height_width::of(call.at[3]),
                                      {x.extents[2], x.extents[3]}, {g.extents[2], g.extents[3]}};
  const index_t taps = sizes.taps(), images = x.extents[0], width = sizes.made.width,
                pixels = sizes.made.height * width;
  if (g.size() == 0) {
    if (!out.adds) std::fill_n(out.data<T>(), out.size(), T{});
    return;
  }
  detail::for_each_plane(
      call.threads, x.extents[1], images * taps * pixels, [&](index_t channel, scratch_memory& scratch) {
        constexpr index_t lanes = image_type::lanes;
        const image_type image(sizes, scratch, pixels + lanes * (taps + 1));
        T* const gradient = image.beside();
        V* const sums = reinterpret_cast<V*>(gradient + (pixels + lanes - 1) / lanes * lanes);
        std::fill_n(reinterpret_cast<T*>(sums), lanes * taps, T{});
        for (index_t b = 0; b < images; ++b) {
          image.copy(x.data<const T>() + b * x.stride[0] + channel * x.stride[1], x.stride[2], x.stride[3]);
          const T* const from = g.data<const T>() + b * g.stride[0] + channel * g.stride[1];
          for (index_t p = 0; p < pixels; ++p)
            gradient[p] = from[p / width * g.stride[2] + p % width * g.stride[3]];
          for (index_t t = 0; t < taps; t += places) {
            V sum[std::size_t{places}];
            for (int p = 0; p < places; ++p) sum[p] = sums[std::min(t + p, taps - 1)];
            for (index_t i = 0; i < sizes.made.height; ++i)
              detail::correlate_row(image, i, t, taps, gradient + i * width, width, sum);
            for (int p = 0; p < places && t + p < taps; ++p) sums[t + p] = sum[p];
          }
        }
        T* const to = out.data<T>() + channel * taps;
        for (index_t t = 0; t < taps; ++t) {
          T sum = out.adds ? to[t] : T{};
          for (index_t l = 0; l < lanes; ++l) sum += sums[t][l];
          to[t] = sum;
        }
      });
}

}  // namespace WEFT_ISA
}  // namespace weft::cpu
