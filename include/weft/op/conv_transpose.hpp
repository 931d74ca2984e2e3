// SPDX-License-Identifier: MIT
// Transposed convolution, the derivative of a convolution with respect to its image.
//
//   auto y = conv_transpose2d<conv_transpose_options{.stride = 2}>(x, weight, bias);   // twice the size
#pragma once

#include <weft/op/convolution.hpp>

namespace weft {

/// The steps between windows of the result, what is cut off around it, what is added at its bottom and right
/// (less than a step, or than the dilation), the steps within a window, and the groups of channels, as
/// torch.nn.ConvTranspose2d.
struct conv_transpose_options {
  height_width stride = 1, padding = 0, output_padding = 0, dilation = 1;
  index_t groups = 1;
};

namespace op {

/// The compile-time error for operands of a transposed convolution.
template <bool Holds, class... Extents>
struct conv_transpose_law {
  static_assert(Holds,
                "weft: conv_transpose2d: x must be [B, C, H, W] and the weight [C, O / groups, height, "
                "width], of static height and width; groups must divide C; stride and dilation must be "
                "positive, padding must not be negative or remove the whole result, and output_padding must "
                "be less than the stride or the dilation");
};
/// The compile-time error for operands of a transposed convolution that do not have the same floating type.
template <bool Holds, class... Types>
struct conv_transpose_type_law {
  static_assert(Holds, "weft: conv_transpose2d: x and the weight must have the same floating type");
};
/// The compile-time error for the bias of a transposed convolution.
template <bool Holds, class... Extents>
struct conv_transpose_bias_law {
  static_assert(Holds,
                "weft: conv_transpose2d, conv_transpose1d: the bias must be [O], where O is the weight's "
                "second extent times groups");
};

namespace detail {
/// The extent of the image that has `extent` windows.
template <class Dims>
constexpr index_t image_over(Dims& dims, index_t extent, index_t size, index_t step, index_t padding,
                             index_t added, index_t dilation, bool& fits) {
  fits = fits && size > 0 && step > 0 && dilation > 0 && padding >= 0 && added >= 0 &&
         (added < step || added < dilation) && dims.require_elements(extent);
  if (!fits) return extent;
  const index_t whole =
      dims.add(dims.multiply(dims.subtract(extent, 1), step), dilation * (size - 1) + 1 + added);
  fits = dims.require_at_most(2 * padding + 1, whole);
  return fits ? dims.subtract(whole, 2 * padding) : extent;
}
}  // namespace detail

/// For x [B, C, H, W], the sum of windows, each an element of x times the weight
/// [C, O / groups, height, width]. v0 packs the steps between windows, v1 the padding, v2 the steps within a
/// window; v3 is the number of groups, v4 packs the padding of the output.
struct conv_transpose2d : rule<2> {
  static constexpr auto kind = op_kind::composed;
  static constexpr auto name = "conv_transpose2d";
  template <bool Holds, class... Extents>
  using law = conv_transpose_law<Holds, Extents...>;
  template <bool Holds, class... Types>
  using type_law = conv_transpose_type_law<Holds, Types...>;
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    const shape &x = operands[0].extents, &w = operands[1].extents;
    inferred result{x.order == 4 && w.order == 4, operands[0],
                    operands[0].type == operands[1].type && is_floating(operands[0].type)};
    index_t channels = 0;
    result.holds = result.holds && w[2] >= 0 && w[3] >= 0 && at[3] > 0 && dims.unify(x[1], w[0], channels) &&
                   (channels < 0 || channels % at[3] == 0);
    if (!result.holds) return result;
    if (at[3] > 1) dims.divide(w[0], at[3]);  // checked at run time if it is not known now
    const auto step = height_width::of(at[0]), padding = height_width::of(at[1]),
               dilation = height_width::of(at[2]), added = height_width::of(at[4]);
    shape& s = result.value.extents;
    s[1] = dims.multiply(w[1], at[3]);
    s[2] = detail::image_over(dims, x[2], w[2], step.height, padding.height, added.height, dilation.height,
                              result.holds);
    s[3] = detail::image_over(dims, x[3], w[3], step.width, padding.width, added.width, dilation.width,
                              result.holds);
    return result;
  }
  static constexpr auto value(const attributes& at, auto x, auto w) {
    symbol_table& dims = x.owner->dims;
    const tensor_spec operands[]{x.get().result, w.get().result};
    const shape image = infer(dims, at, operands).value.extents, size = w.extents();
    if (detail::is_depthwise(dims, at, size))
      return detail::depthwise_image_gradient(x, reshape_to(w, {3, {size[0], size[2], size[3]}}),
                                              {{at[0], at[2], at[1]}, 3}, image);
    return detail::conv_matrices{at, image, size, x.extents()}.image_gradient(x, w);
  }
  static constexpr auto vjp(auto g, auto y, auto x, auto w) {
    symbol_table& dims = g.owner->dims;
    const attributes at = y.attribute_values(), of_windows{{at[0], at[1], at[2], at[3]}, 4};
    const shape size = w.extents(), from = x.extents();
    // If output_padding is a step or more, there are more windows than elements of x: the first ones count.
    const auto of_x =
        detail::first_of(g.owner->template apply<conv2d>(of_windows, g, w), 2, from[2], from[3]);
    if (detail::is_depthwise(dims, at, size))
      return std::array{
          of_x,
          reshape_to(g.owner->template apply<depthwise_weight_gradient>(
                         attributes{{at[0], at[2], at[1], height_width(size[2], size[3]).packed()}, 4}, g, x),
                     size)};
    return std::array{of_x, detail::conv_matrices{at, g.extents(), size, from}.weight_gradient(x, g)};
  }
};

}  // namespace op

/// The transposed convolution of x [B, C, H, W] by a weight [C, O / groups, height, width] with static height
/// and width: [B, O, (H - 1) stride - 2 padding + dilation (height - 1) + output_padding + 1, ...]. It is the
/// derivative of conv2d with these options with respect to its image. Both operands have the same floating
/// type. Static extents that do not match do not compile; dynamic ones throw shape_error at evaluation.
/// output_padding must be less than the stride or the dilation. Computed as matrix products whose columns are
/// added up; these columns take O height width numbers of temporary memory per element of x's images.
/// torch.nn.functional.conv_transpose2d.
template <conv_transpose_options O = conv_transpose_options{}, expression X, expression W>
constexpr auto conv_transpose2d(X x, W weight) {
  return apply<op::conv_transpose2d, attr<O.stride.packed(), O.padding.packed(), O.dilation.packed(),
                                          O.groups, O.output_padding.packed()>>(std::move(x),
                                                                                std::move(weight));
}
/// The same plus a bias [O].
template <conv_transpose_options O = conv_transpose_options{}, expression X, expression W, expression B>
constexpr auto conv_transpose2d(X x, W weight, B bias) {
  return apply<op::with_channel_bias<"conv_transpose2d", op::conv_transpose_bias_law>>(
      conv_transpose2d<O>(std::move(x), std::move(weight)), std::move(bias));
}

namespace detail {
constexpr conv_transpose_options along_width(conv_transpose_options o) {
  return {{1, o.stride.width},
          {0, o.padding.width},
          {0, o.output_padding.width},
          {1, o.dilation.width},
          o.groups};
}
}  // namespace detail

/// conv_transpose2d for sequences: x [B, C, L] by a weight [C, O / groups, width] with static width; the
/// options apply by their width. torch.nn.functional.conv_transpose1d.
template <conv_transpose_options O = conv_transpose_options{}, expression X, expression W>
constexpr auto conv_transpose1d(X x, W weight) {
  return select<2, 0>(
      conv_transpose2d<detail::along_width(O)>(unsqueeze<2>(std::move(x)), unsqueeze<2>(std::move(weight))));
}
/// The same plus a bias [O].
template <conv_transpose_options O = conv_transpose_options{}, expression X, expression W, expression B>
constexpr auto conv_transpose1d(X x, W weight, B bias) {
  return apply<op::with_channel_bias<"conv_transpose1d", op::conv_transpose_bias_law>>(
      conv_transpose1d<O>(std::move(x), std::move(weight)), std::move(bias));
}

}  // namespace weft
