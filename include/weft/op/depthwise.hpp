// SPDX-License-Identifier: MIT
// Convolutions with as many groups as channels: each channel is convolved with its own matrix. They read each
// element once per place in a window and involve no matrix product, so they are separate ops, which conv2d
// uses.
#pragma once

#include <weft/op/join.hpp>
#include <weft/op/movement.hpp>

namespace weft::op {

/// The convolution of each channel of x [B, C, H, W] with its own matrix, w [C, height, width]:
/// [B, C, v3, v4]. v0 packs the steps between windows, v1 the steps within one, v2 the zeros above and left
/// of x; windows may also extend beyond the end of x, into zeros.
struct depthwise_conv2d : rule<2> {
  static constexpr unsigned extents = 0b11000;
  static constexpr auto kind = op_kind::native;
  static constexpr bool widens = true;
  static constexpr auto name = "depthwise_conv2d";
  static constexpr auto divides = "bc.. c.. -> bc..";
  static constexpr native_code code{.op = native_op::depthwise_conv2d};
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    const shape &x = operands[0].extents, &w = operands[1].extents;
    inferred result{x.order == 4 && w.order == 3, operands[0], is_floating(operands[0].type)};
    index_t channels = 0;
    result.holds = result.holds && dims.unify(x[1], w[0], channels);
    result.value.extents[2] = at[3];
    result.value.extents[3] = at[4];
    return result;
  }
  static constexpr auto vjp(auto g, auto y, auto x, auto w);
};

/// The cotangent of w, [C, height, width], from x [B, C, H, W] and g [B, C, rows, columns]. v0 to v2 are as
/// in depthwise_conv2d; v3 packs height and width.
struct depthwise_weight_gradient : rule<2> {
  static constexpr auto kind = op_kind::native;
  static constexpr bool widens = true;
  static constexpr auto name = "depthwise_weight_gradient";
  static constexpr auto divides = "bc.. bc.. -> c..";
  static constexpr native_code code{.op = native_op::depthwise_weight_gradient};
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    const shape &x = operands[0].extents, &g = operands[1].extents;
    const auto size = height_width::of(at[3]);
    inferred result{x.order == 4 && g.order == 4, operands[0], is_floating(operands[0].type)};
    index_t both = 0;
    result.holds = result.holds && dims.unify(x[0], g[0], both) && dims.unify(x[1], g[1], both);
    result.value.extents = {3, {x[1], size.height, size.width}};
    return result;
  }
  static constexpr auto vjp(auto c, auto y, auto x, auto g);
};

namespace detail {
/// The cotangent of x [B, C, H, W] in depthwise_conv2d with attributes `at`: each element of g is spread over
/// the window that it came from. This is itself a convolution: of g, with zeros filling the steps between its
/// elements, by the flipped matrix.
constexpr auto depthwise_image_gradient(auto g, auto w, const attributes& at, shape x) {
  const auto step = height_width::of(at[0]), inner = height_width::of(at[1]),
             padding = height_width::of(at[2]);
  const height_width size(w.extents()[1], w.extents()[2]);
  const auto spread = [](auto v, int dim, index_t by) {
    if (by == 1) return v;
    symbol_table& dims = v.owner->dims;
    const index_t last = dims.multiply(dims.subtract(v.extents()[dim], 1), by);
    return v.owner->template apply<pad>(attributes{{dim, 0, dims.add(last, 1), by}, 4}, v);
  };
  const auto turned =
      w.owner->template apply<flip>(attributes{{2}, 1}, w.owner->template apply<flip>(attributes{{1}, 1}, w));
  const height_width before((size.height - 1) * inner.height - padding.height,
                            (size.width - 1) * inner.width - padding.width);
  return g.owner->template apply<depthwise_conv2d>(
      attributes{{height_width(1).packed(), at[1], before.packed(), x[2], x[3]}, 5},
      spread(spread(g, 2, step.height), 3, step.width), turned);
}
/// The cotangents of x and w in depthwise_conv2d with attributes `at`.
constexpr auto depthwise_gradients(auto g, auto x, auto w, const attributes& at) {
  const height_width size(w.extents()[1], w.extents()[2]);
  return std::array{depthwise_image_gradient(g, w, at, x.extents()),
                    g.owner->template apply<depthwise_weight_gradient>(
                        attributes{{at[0], at[1], at[2], size.packed()}, 4}, x, g)};
}
}  // namespace detail

constexpr auto depthwise_conv2d::vjp(auto g, auto y, auto x, auto w) {
  const attributes at = y.attribute_values();
  return detail::depthwise_gradients(g, x, w, at);
}
constexpr auto depthwise_weight_gradient::vjp(auto c, auto y, auto x, auto g) {
  const attributes at = y.attribute_values();
  const shape s = g.extents();
  return std::array{
      detail::depthwise_image_gradient(g, c, at, x.extents()),
      c.owner->template apply<depthwise_conv2d>(attributes{{at[0], at[1], at[2], s[2], s[3]}, 5}, x, c)};
}

namespace detail {
/// Whether each channel has its own matrix and the padding is smaller than a window.
constexpr bool is_depthwise(symbol_table& dims, const attributes& at, const shape& w) {
  const auto padding = height_width::of(at[1]), inner = height_width::of(at[2]);
  return at[3] > 1 && dims.canonical(w[0]) == at[3] && dims.canonical(w[1]) == 1 &&
         padding.height <= (w[2] - 1) * inner.height && padding.width <= (w[3] - 1) * inner.width;
}
constexpr auto depthwise(const attributes& at, auto x, auto w) {
  symbol_table& dims = x.owner->dims;
  const shape size = w.extents();
  const shape image = x.extents();
  const auto step = height_width::of(at[0]), padding = height_width::of(at[1]),
             inner = height_width::of(at[2]);
  const auto windows_in = [&](index_t extent, index_t zeros, index_t n, index_t by, index_t within) {
    return dims.divide_up(dims.subtract(dims.add(extent, 2 * zeros), within * (n - 1)), by);
  };
  const attributes of_matrices{
      {at[0], at[2], at[1], windows_in(image[2], padding.height, size[2], step.height, inner.height),
       windows_in(image[3], padding.width, size[3], step.width, inner.width)},
      5};
  return x.owner->template apply<depthwise_conv2d>(of_matrices, x,
                                                   reshape_to(w, {3, {size[0], size[2], size[3]}}));
}
}  // namespace detail

}  // namespace weft::op
