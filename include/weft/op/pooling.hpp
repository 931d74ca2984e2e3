// SPDX-License-Identifier: MIT
// Pooling: reductions over windows of the last two dims.
//
//   auto y = max_pool2d<2>(x);                                // [B, C, H, W] -> [B, C, H / 2, W / 2]
//   auto z = avg_pool2d<3, pool_options{.stride = 2, .ceil_mode = true}>(x);
#pragma once

#include <algorithm>

#include <weft/op/convolution.hpp>

namespace weft {

/// The steps between windows (0: the size of a window) and the padding around the image, as
/// torch.nn.MaxPool2d and AvgPool2d. `ceil_mode`: the last window may reach beyond the padding, if it starts
/// within the image or the padding before it. `count_include_pad`: whether means count the padding as zeros;
/// otherwise they are over the elements of the image only.
struct pool_options {
  height_width stride = 0, padding = 0;
  bool ceil_mode = false, count_include_pad = true;
};

namespace op {

/// The compile-time error for pooling.
template <bool Holds, class... Extents>
struct pool_law {
  static_assert(Holds,
                "weft: pooling: the operand must have two to four dims; a window must fit into the padded "
                "last two, with padding at most half the window; sizes and strides must be positive");
};

/// Base of ops with one result element per window, [..., H, W] -> [..., windows, windows]: v0 packs the size
/// of a window, v1 the steps between windows, v2 the padding before and v3 the padding after the elements of
/// each dim.
struct pooling : rule<1> {
  template <bool Holds, class... Extents>
  using law = pool_law<Holds, Extents...>;
  template <bool Holds, class... Types>
  using type_law = no_bool_law<Holds, Types...>;

 protected:
  template <class Dims>
  static constexpr inferred pooled(Dims& dims, const attributes& at, const tensor_spec& x, dtype type) {
    const auto size = height_width::of(at[0]), before = height_width::of(at[2]),
               after = height_width::of(at[3]);
    const auto fits = [](index_t window, index_t first, index_t last) {
      return 0 <= first && 2 * first <= window && 0 <= last && last < std::max<index_t>(window, 1);
    };
    inferred result{detail::is_image(x.extents) && fits(size.height, before.height, after.height) &&
                        fits(size.width, before.width, after.width),
                    {type, x.extents},
                    x.type != dtype::boolean};
    shape& s = result.value.extents;  // a window of only padding has no largest element
    result.holds =
        result.holds && dims.require_elements(s[s.order - 2]) && dims.require_elements(s[s.order - 1]);
    if (!result.holds) return result;
    detail::pad_extents(dims, s, before, after);
    result.holds = detail::make_windows(dims, s, size, height_width::of(at[1]), 1);
    return result;
  }
};

/// The position in [..., H W] of the largest element of each window, i64: a NaN if there is one, the first of
/// equal elements, never padding.
struct arg_window_max : pooling {
  static constexpr auto kind = op_kind::native;
  static constexpr auto name = "arg_window_max";
  static constexpr auto divides = "L.. -> L..";
  static constexpr native_code code{.op = native_op::arg_window_max};
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    return pooled(dims, at, operands[0], dtype::i64);
  }
  static constexpr auto vjp(auto g, auto, auto) { return no_gradient(g); }
};

/// The largest element of each window.
struct max_pool2d : pooling {
  static constexpr auto kind = op_kind::composed;
  static constexpr auto name = "max_pool2d";
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    return pooled(dims, at, operands[0], operands[0].type);
  }
  static constexpr auto value(const attributes& at, auto x) {
    const auto index = x.owner->template apply<arg_window_max>(at, x);
    const auto flat = [](auto v) {
      shape s = v.extents();
      s[s.order - 2] = v.owner->dims.multiply(s[s.order - 2], s[s.order - 1]);
      --s.order;
      return reshape_to(v, s);
    };
    return reshape_to(gather_of(flat(x), flat(index), x.extents().order - 2), index.extents());
  }
};

/// The mean of each window. v4 packs how many elements of the padding on each side count as zeros; windows do
/// not include the rest of the padding.
struct avg_pool2d : pooling {
  static constexpr auto kind = op_kind::composed;
  static constexpr bool widens = true;
  static constexpr auto name = "avg_pool2d";
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    return pooled(dims, at, operands[0], floating(operands[0].type));
  }
  static constexpr auto value(const attributes& at, auto x) {
    const auto size = height_width::of(at[0]), step = height_width::of(at[1]),
               before = height_width::of(at[2]), after = height_width::of(at[3]),
               counted = height_width::of(at[4]);
    const auto v = detail::windows_last(detail::padded(cast_to(x, floating(x.type())), before, after), size,
                                        at[1], height_width(1).packed());
    const int order = v.extents().order;
    shape s = v.extents();
    s[order - 4] = s[order - 2];
    s[order - 3] = s[order - 1];
    s.order -= 2;
    const auto sums = reshape_to(sum_dims(v, order - 4, order - 2), s);
    if (before == counted && after == counted) return sums / static_cast<double>(size.height * size.width);
    // The number of elements of each window along a dim.
    const auto in_dim = [&](int dim, index_t window, index_t stride, index_t first, index_t zeros) {
      shape along{1, {s[dim]}};
      while (along.order < s.order - dim) along.append(1);
      const auto begin = x.owner->coordinate(s[dim], dtype::i32) * stride - first;
      const auto end = x.owner->extent(x.extents()[dim], dtype::i32) + zeros;
      const auto count = weft::minimum(begin + window, end) - weft::maximum(begin, -zeros);
      return reshape_to(cast_to(count, sums.type()), along);
    };
    return sums / (in_dim(s.order - 2, size.height, step.height, before.height, counted.height) *
                   in_dim(s.order - 1, size.width, step.width, before.width, counted.width));
  }
};

}  // namespace op

namespace detail {
/// The padding after the elements of a dim: in ceil mode, enough for the last window.
constexpr index_t padding_after(index_t size, index_t step, index_t padding, bool ceil_mode) {
  return ceil_mode ? padding + std::min(step, size - padding) - 1 : padding;
}
template <height_width Size, pool_options O>
struct pool_layout {
  static constexpr height_width step{O.stride.height ? O.stride.height : Size.height,
                                     O.stride.width ? O.stride.width : Size.width};
  static constexpr height_width after{padding_after(Size.height, step.height, O.padding.height, O.ceil_mode),
                                      padding_after(Size.width, step.width, O.padding.width, O.ceil_mode)};
  using of_maxima = attr<Size.packed(), step.packed(), O.padding.packed(), after.packed()>;
  using of_means = attr<Size.packed(), step.packed(), O.padding.packed(), after.packed(),
                        O.count_include_pad ? O.padding.packed() : 0>;
};
constexpr pool_options pool_along_width(pool_options o) {
  return {{1, o.stride.width}, {0, o.padding.width}, o.ceil_mode, o.count_include_pad};
}
}  // namespace detail

/// The largest element of each window of the last two dims: [..., H, W] -> [..., (H + 2 padding - height) /
/// stride + 1, ...], for two to four dims and every type but bool. The stride is the window size unless
/// O.stride is given. The quotient is rounded down; with O.ceil_mode it is rounded up, but a window that
/// would start after the elements and the padding before them is omitted. Padding, at most half a window, is
/// never the largest; a NaN is. The gradient goes to the first of equal elements.
/// torch.nn.functional.max_pool2d.
///
///   max_pool2d<3, pool_options{.stride = 2, .padding = 1}>(x)
template <height_width Size, pool_options O = pool_options{}, expression X>
constexpr auto max_pool2d(X x) {
  static_assert(O.count_include_pad, "weft: max_pool2d: count_include_pad is an option of avg_pool2d");
  return apply<op::max_pool2d, typename detail::pool_layout<Size, O>::of_maxima>(std::move(x));
}
/// The mean of each window, with the windows of max_pool2d. Padding counts as zeros unless
/// O.count_include_pad is false; elements of a window beyond the padding, in O.ceil_mode, do not count.
/// Integers become f32. torch.nn.functional.avg_pool2d.
///
///   avg_pool2d<3, pool_options{.stride = 2, .padding = 1, .count_include_pad = false}>(x)
template <height_width Size, pool_options O = pool_options{}, expression X>
constexpr auto avg_pool2d(X x) {
  return apply<op::avg_pool2d, typename detail::pool_layout<Size, O>::of_means>(std::move(x));
}
/// max_pool2d for sequences: [..., L] -> [..., windows]; the options apply by their width.
template <index_t Size, pool_options O = pool_options{}, expression X>
constexpr auto max_pool1d(X x) {
  constexpr int order = X::static_shape.order;
  return select<order - 1, 0>(
      max_pool2d<height_width{1, Size}, detail::pool_along_width(O)>(unsqueeze<order - 1>(std::move(x))));
}
/// avg_pool2d for sequences.
template <index_t Size, pool_options O = pool_options{}, expression X>
constexpr auto avg_pool1d(X x) {
  constexpr int order = X::static_shape.order;
  return select<order - 1, 0>(
      avg_pool2d<height_width{1, Size}, detail::pool_along_width(O)>(unsqueeze<order - 1>(std::move(x))));
}

}  // namespace weft
