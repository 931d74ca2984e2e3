// SPDX-License-Identifier: MIT
// Convolution: matrix products over windows of the last two dims. Windows are a view, which matrix products
// read in place on CPUs and from a copy on other devices.
//
//   auto y = relu(conv2d<conv_options{.padding = 1}>(x, weight, bias));     // [B, C, H, W] -> [B, O, H, W]
#pragma once

#include <limits>

#include <weft/op/contraction.hpp>
#include <weft/op/depthwise.hpp>
#include <weft/op/functions.hpp>
#include <weft/op/movement.hpp>
#include <weft/op/select.hpp>

namespace weft {

/// As the padding of a convolution with stride 1: dilation (size - 1) / 2, which gives the result the extents
/// of the image. PyTorch's padding="same", for windows with a middle element or gap: odd sizes, and even
/// sizes with an even dilation.
inline constexpr height_width same_padding = std::numeric_limits<index_t>::min();
/// The steps between windows, the zeros around the image (or same_padding), the steps within a window, and
/// the groups of channels, as torch.nn.Conv2d.
struct conv_options {
  height_width stride = 1, padding = 0, dilation = 1;
  index_t groups = 1;
};
namespace op {

/// The compile-time error for windows that do not fit.
template <bool Holds, class... Extents>
struct windows_law {
  static_assert(Holds,
                "weft: windows: the operand must have two to four dims, and its last two must be at least as "
                "large as a window, whose size and stride must be positive");
};
/// The compile-time error for operands of a convolution.
template <bool Holds, class... Extents>
struct conv_law {
  static_assert(Holds,
                "weft: conv2d: x must be [B, C, H, W] and the weight [O, C / groups, height, width], of "
                "static height and width, which must fit into the padded H and W; groups must divide C and "
                "O; stride and dilation must be positive, and padding must not be negative");
};
/// The compile-time error for operands of a convolution that do not have the same floating type.
template <bool Holds, class... Types>
struct conv_type_law {
  static_assert(Holds, "weft: conv2d: x and the weight must have the same floating type");
};
/// The compile-time error for the bias of a convolution.
template <bool Holds, class... Extents>
struct conv_bias_law {
  static_assert(Holds, "weft: conv2d, conv1d: the bias must be [O], where O is the weight's first extent");
};
namespace detail {
/// The number of windows over `extent` elements.
template <class Dims>
constexpr index_t windows_over(Dims& dims, index_t extent, index_t size, index_t step, index_t dilation,
                               bool& fits) {
  const index_t span = dilation * (size - 1) + 1;
  fits = fits && size > 0 && step > 0 && dilation > 0 && dims.require_at_most(span, extent);
  return fits ? dims.divide_up(dims.subtract(extent, span - 1), step) : extent;
}
/// Replaces the last two extents of `s` by those of its windows.
template <class Dims>
constexpr bool make_windows(Dims& dims, shape& s, height_width size, height_width step,
                            height_width dilation) {
  bool fits = true;
  index_t &h = s[s.order - 2], &w = s[s.order - 1];
  h = windows_over(dims, h, size.height, step.height, dilation.height, fits);
  w = windows_over(dims, w, size.width, step.width, dilation.width, fits);
  return fits;
}
template <class Dims>
constexpr void pad_extents(Dims& dims, shape& s, height_width before, height_width after) {
  s[s.order - 2] = dims.add(s[s.order - 2], before.height + after.height);
  s[s.order - 1] = dims.add(s[s.order - 1], before.width + after.width);
}
/// Zeros before and after the last two dims.
constexpr auto padded(auto x, height_width before, height_width after) {
  const auto pad_dim = [](auto v, int dim, index_t first, index_t last) {
    if (first + last == 0) return v;
    const attributes at{{dim, first, v.owner->dims.add(v.extents()[dim], first + last), 1}, 4};
    return v.owner->template apply<pad>(at, v);
  };
  const int order = x.extents().order;
  return pad_dim(pad_dim(x, order - 2, before.height, after.height), order - 1, before.width, after.width);
}
constexpr auto padded(auto x, height_width around) { return padded(x, around, around); }
constexpr bool is_image(const shape& s) { return s.order >= 2 && s.order + 2 <= max_order; }
}  // namespace detail

/// [..., H, W] -> [..., windows, windows, height, width]: v0 packs the size of a window, v1 the steps between
/// windows, v2 those within one.
struct windows : view<1> {
  static constexpr auto name = "windows";
  static constexpr auto divides = "L.. -> L....";
  template <bool Holds, class... Extents>
  using law = windows_law<Holds, Extents...>;
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    inferred result{detail::is_image(operands[0].extents), operands[0]};
    if (!result.holds) return result;
    const auto size = height_width::of(at[0]);
    shape& s = result.value.extents;
    result.holds = detail::make_windows(dims, s, size, height_width::of(at[1]), height_width::of(at[2]));
    s.append(size.height);
    s.append(size.width);
    return result;
  }
  static constexpr auto vjp(auto g, auto y, auto x);
};

/// The adjoint of `windows` on a padded operand: [..., windows, windows, height, width] -> [..., v0, v1],
/// where each element is the sum of all window elements that refer to it. v2 packs the steps between windows,
/// v3 the steps within one, v4 the padding.
struct fold_windows : rule<1> {
  static constexpr unsigned extents = 0b11;
  static constexpr auto kind = op_kind::native;
  static constexpr bool widens = true;
  static constexpr auto name = "fold_windows";
  static constexpr auto divides = "L.... -> L..";
  static constexpr native_code code{.op = native_op::fold_windows};
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes& at, const tensor_spec* operands) {
    inferred result{operands[0].extents.order >= 4, operands[0]};
    shape& s = result.value.extents;
    s.order -= 2;
    s[s.order - 2] = at[0];
    s[s.order - 1] = at[1];
    return result;
  }
  static constexpr auto vjp(auto g, auto y, auto x);
};

constexpr auto windows::vjp(auto g, auto y, auto x) {
  const shape& s = x.extents();
  const attributes at{{s[s.order - 2], s[s.order - 1], y.attribute(1), y.attribute(2), 0}, 5};
  return g.owner->template apply<fold_windows>(at, g);
}
constexpr auto fold_windows::vjp(auto g, auto y, auto x) {
  const shape& s = x.extents();
  const height_width size(s[s.order - 2], s[s.order - 1]);
  return g.owner->template apply<windows>(attributes{{size.packed(), y.attribute(2), y.attribute(3)}, 3},
                                          detail::padded(g, height_width::of(y.attribute(4))));
}

/// The convolution of x [B, C, H, W] by a weight [O, C / groups, height, width]. v0 packs the steps between
/// windows, v1 the padding, v2 the steps within a window; v3 is the number of groups.
struct conv2d : rule<2> {
  static constexpr auto kind = op_kind::composed;
  static constexpr auto name = "conv2d";
  template <bool Holds, class... Extents>
  using law = conv_law<Holds, Extents...>;
  template <bool Holds, class... Types>
  using type_law = conv_type_law<Holds, Types...>;
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    const shape &x = operands[0].extents, &w = operands[1].extents;
    const auto padding = height_width::of(at[1]);
    inferred result{x.order == 4 && w.order == 4, operands[0],
                    operands[0].type == operands[1].type && is_floating(operands[0].type)};
    result.holds =
        result.holds && w[2] >= 0 && w[3] >= 0 && at[3] > 0 && padding.height >= 0 && padding.width >= 0;
    if (!result.holds) return result;
    shape& s = result.value.extents;
    index_t channels = 0;
    s[1] = w[0];
    if (at[3] > 1) dims.divide(w[0], at[3]);  // checked at run time if it is not known now
    detail::pad_extents(dims, s, padding, padding);
    result.holds =
        dims.unify(x[1], dims.multiply(w[1], at[3]), channels) && (w[0] < 0 || w[0] % at[3] == 0) &&
        detail::make_windows(dims, s, {w[2], w[3]}, height_width::of(at[0]), height_width::of(at[2]));
    return result;
  }
  static constexpr auto value(const attributes& at, auto x, auto w);
  static constexpr auto vjp(auto g, auto y, auto x, auto w);
};

namespace detail {
/// Windows with the positions within a window first: [..., height, width, windows, windows].
constexpr auto windows_last(auto x, height_width size, index_t step, index_t dilation) {
  const auto v = x.owner->template apply<windows>(attributes{{size.packed(), step, dilation}, 3}, x);
  attributes order;
  order.count = v.extents().order;
  for (int i = 0; i < order.count; ++i)
    order[i] = i < order.count - 4 ? i : i < order.count - 2 ? i + 2 : i - 2;
  return permute_dims(v, order);
}
}  // namespace detail

namespace detail {
/// The first `rows` and `columns` along dims `dim` and dim + 1, of which `v` may have more.
constexpr auto first_of(auto v, int dim, index_t rows, index_t columns) {
  symbol_table& dims = v.owner->dims;
  const auto cut = [&](auto of, int d, index_t count) {
    return dims.canonical(of.extents()[d]) == dims.canonical(count) ? of : slice_dim(of, d, 0, count);
  };
  return cut(cut(v, dim, rows), dim + 1, columns);
}
/// The matrices whose product is a convolution, for each image and group; with one group, the dim of groups
/// is left out.
struct conv_matrices {
  const attributes& at;
  shape image, size, made;  // of x, of the weight, of the result

  constexpr index_t groups() const { return at[3]; }
  constexpr index_t taken(symbol_table& dims) const { return product(dims, size, 1, 4); }
  constexpr index_t pixels(symbol_table& dims) const { return product(dims, made, 2, 4); }

  constexpr auto weight_of(auto w) const {
    symbol_table& dims = w.owner->dims;
    if (groups() == 1) return reshape_to(w, {2, {size[0], taken(dims)}});
    return reshape_to(w, {3, {groups(), dims.divide(size[0], groups()), taken(dims)}});
  }
  /// A value in the result's shape.
  constexpr auto result_of(auto y) const {
    symbol_table& dims = y.owner->dims;
    if (groups() == 1) return reshape_to(y, {3, {made[0], made[1], pixels(dims)}});
    return reshape_to(y, {4, {made[0], groups(), dims.divide(made[1], groups()), pixels(dims)}});
  }
  /// The windows of x as [B groups, C / groups, height, width, H, W], and as columns.
  constexpr auto windows_of(auto x) const {
    const auto v = padded(x, height_width::of(at[1]));
    shape s = v.extents();
    s[0] = x.owner->dims.multiply(s[0], groups());
    s[1] = size[1];
    return windows_last(reshape_to(v, s), {size[2], size[3]}, at[0], at[2]);
  }
  constexpr auto columns_of(auto v) const {
    symbol_table& dims = v.owner->dims;
    if (groups() == 1) return reshape_to(v, {3, {made[0], taken(dims), pixels(dims)}});
    return reshape_to(v, {4, {made[0], groups(), taken(dims), pixels(dims)}});
  }

  /// The cotangent of the weight. With one group it is a single product, whose columns are the windows of all
  /// images.
  constexpr auto weight_gradient(auto g, auto x) const {
    symbol_table& dims = g.owner->dims;
    const auto v = first_of(windows_of(x), 4, made[2], made[3]);
    if (groups() > 1 || size[2] * size[3] == 1)
      return reshape_to(sum_dims(contract::wide_product(result_of(g), transposed(columns_of(v))), 0, 1),
                        size);
    const index_t all = dims.multiply(made[0], pixels(dims));
    const auto columns = reshape_to(permute_dims(v, {{1, 2, 3, 0, 4, 5}, 6}), {2, {taken(dims), all}});
    return reshape_to(
        contract_of(reshape_to(permute_dims(g, {{1, 0, 2, 3}, 4}), {2, {size[0], all}}), transposed(columns)),
        size);
  }
  /// The cotangent of the image. Products of bf16 and f16 are rounded after they have been summed.
  constexpr auto image_gradient(auto g, auto w) const {
    symbol_table& dims = g.owner->dims;
    const auto weight = transposed(weight_of(w)), made_of = result_of(g);
    const auto columns = contract::wide_product(expand_batch(weight, made_of), expand_batch(made_of, weight));
    constexpr index_t one = height_width(1).packed();
    if (size[2] * size[3] == 1 && at[0] == one && at[1] == 0) return reshape_to(columns, image);
    const auto v = reshape_to(
        columns, {6, {dims.multiply(made[0], groups()), size[1], size[2], size[3], made[2], made[3]}});
    return reshape_to(
        g.owner->template apply<fold_windows>(attributes{{image[2], image[3], at[0], at[2], at[1]}, 5},
                                              permute_dims(v, {{0, 1, 4, 5, 2, 3}, 6})),
        image);
  }
};
}  // namespace detail

constexpr auto conv2d::value(const attributes& at, auto x, auto w) {
  if (detail::is_depthwise(x.owner->dims, at, w.extents())) return detail::depthwise(at, x, w);
  detail::conv_matrices m{at, x.extents(), w.extents(), {}};
  const auto v = m.windows_of(x);
  m.made = {4, {m.image[0], m.size[0], v.extents()[4], v.extents()[5]}};
  return reshape_to(x.owner->template apply<matmul>({}, m.weight_of(w), m.columns_of(v)), m.made);
}
constexpr auto conv2d::vjp(auto g, auto y, auto x, auto w) {
  const attributes at = y.attribute_values();
  if (const shape size = w.extents(); detail::is_depthwise(g.owner->dims, at, size)) {
    const auto [of_x, of_w] = detail::depthwise_gradients(
        g, x, reshape_to(w, {3, {size[0], size[2], size[3]}}), {{at[0], at[2], at[1]}, 3});
    return std::array{of_x, reshape_to(of_w, size)};
  }
  const detail::conv_matrices m{at, x.extents(), w.extents(), y.extents()};
  return std::array{m.image_gradient(g, w), m.weight_gradient(g, x)};
}

/// A convolution [B, O, ...] plus a bias [O].
struct plus_channel_bias : composed<2> {
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes&, const tensor_spec* operands) {
    const shape &x = operands[0].extents, &bias = operands[1].extents;
    inferred result{x.order >= 2 && bias.order == 1, {promoted(operands[0].type, operands[1].type), x}};
    result.holds = result.holds && dims.unify(x[1], bias[0], result.value.extents[1]);
    return result;
  }
  static constexpr auto value(auto x, auto bias) {
    shape of_channel{1, {x.extents()[1]}};
    while (of_channel.order < x.extents().order - 1) of_channel.append(1);
    return x + reshape_to(bias, of_channel);
  }
};
/// The same in a formula that users know as `Name`; Law is its compile-time error.
template <op_name Name, template <bool, class...> class Law>
struct with_channel_bias : plus_channel_bias {
  static constexpr const char* name = Name.text;
  template <bool Holds, class... Extents>
  using law = Law<Holds, Extents...>;
};

}  // namespace op

/// Windows over the last two dims, a view: [..., H, W] -> [..., windows, windows, Size.height, Size.width],
/// where element (..., i, j, k, l) is x(..., i Stride.height + k Dilation.height, j Stride.width + l
/// Dilation.width). Windows lie inside the operand; an operand smaller than a window does not compile, or
/// throws shape_error at evaluation if its extent is dynamic. At most four dims. numpy's sliding_window_view;
/// torch.nn.functional.unfold without the copy.
template <height_width Size, height_width Stride = 1, height_width Dilation = 1, expression X>
constexpr auto windows(X x) {
  return apply<op::windows, attr<Size.packed(), Stride.packed(), Dilation.packed()>>(std::move(x));
}

namespace detail {
/// The padding of a convolution by a W [..., height, width].
template <conv_options O, class W>
consteval height_width padding_of() {
  constexpr bool keeps_height = O.padding.height == same_padding.height,
                 keeps_width = O.padding.width == same_padding.width;
  if constexpr ((!keeps_height && !keeps_width) || W::static_shape.order < 2) {
    return O.padding;
  } else {
    constexpr index_t high = O.dilation.height * (W::static_shape.from_right(1) - 1),
                      wide = O.dilation.width * (W::static_shape.from_right(0) - 1);
    static_assert((!keeps_height || O.stride.height == 1) && (!keeps_width || O.stride.width == 1),
                  "weft: conv2d, conv1d: with same_padding, the stride must be 1");
    static_assert(
        (!keeps_height || high % 2 == 0) && (!keeps_width || wide % 2 == 0),
        "weft: conv2d, conv1d: same_padding needs windows that have a middle: static, odd sizes, or an even "
        "dilation");
    return {keeps_height ? high / 2 : O.padding.height, keeps_width ? wide / 2 : O.padding.width};
  }
}
}  // namespace detail

/// The convolution (cross-correlation) of x [B, C, H, W] by a weight [O, C / groups, height, width] with
/// static height and width: [B, O, (H + 2 padding - dilation (height - 1) - 1) / stride + 1, ...]. Both
/// operands have the same floating type. Static extents that do not match do not compile; dynamic ones throw
/// shape_error at evaluation. torch.nn.functional.conv2d.
///
///   conv2d<conv_options{.stride = 2, .padding = {1, 0}}>(x, weight)
///   conv2d<conv_options{.padding = same_padding}>(x, weight)        // 3 x 3: [B, O, H, W]
///
/// Computed as matrix products of the weight and all windows, which are C height width numbers per element of
/// the result's images. They are in memory during the backward pass, unless x needs no gradient or windows
/// are 1 x 1; on devices other than CPUs they are in memory during the forward pass, too. The backward pass
/// saves x. With as many groups as input and output channels (O static), no matrix products are used.
template <conv_options O = conv_options{}, expression X, expression W>
constexpr auto conv2d(X x, W weight) {
  constexpr height_width padding = detail::padding_of<O, W>();
  return apply<op::conv2d, attr<O.stride.packed(), padding.packed(), O.dilation.packed(), O.groups>>(
      std::move(x), std::move(weight));
}

/// The same plus a bias [O].
template <conv_options O = conv_options{}, expression X, expression W, expression B>
constexpr auto conv2d(X x, W weight, B bias) {
  return apply<op::with_channel_bias<"conv2d", op::conv_bias_law>>(conv2d<O>(std::move(x), std::move(weight)),
                                                                   std::move(bias));
}

namespace detail {
constexpr conv_options along_width(conv_options o) {
  return {{1, o.stride.width}, {0, o.padding.width}, {1, o.dilation.width}, o.groups};
}
}  // namespace detail

/// conv2d for sequences: x [B, C, L] by a weight [O, C / groups, width] with static width; the options apply
/// by their width. torch.nn.functional.conv1d.
template <conv_options O = conv_options{}, expression X, expression W>
constexpr auto conv1d(X x, W weight) {
  return select<2, 0>(
      conv2d<detail::along_width(O)>(unsqueeze<2>(std::move(x)), unsqueeze<2>(std::move(weight))));
}
/// The same plus a bias [O].
template <conv_options O = conv_options{}, expression X, expression W, expression B>
constexpr auto conv1d(X x, W weight, B bias) {
  return apply<op::with_channel_bias<"conv1d", op::conv_bias_law>>(conv1d<O>(std::move(x), std::move(weight)),
                                                                   std::move(bias));
}

}  // namespace weft
