// SPDX-License-Identifier: MIT
// Larger images and sequences by repeating elements or interpolating between them.
//
//   auto y = upsample_bilinear<2>(x);      // [B, C, H, W] -> [B, C, 2 H, 2 W]
#pragma once

#include <weft/op/convolution.hpp>
#include <weft/op/join.hpp>

namespace weft {

namespace op {

/// The compile-time error for upsampling.
template <bool Holds, class... Extents>
struct upsample_law {
  static_assert(Holds,
                "weft: upsample: the operand must have two to four dims, and the factors must be positive");
};

/// Each element repeated over the last two dims to fill a rectangle, whose size v0 packs.
struct upsample_nearest : rule<1> {
  static constexpr auto kind = op_kind::composed;
  static constexpr auto name = "upsample_nearest";
  template <bool Holds, class... Extents>
  using law = upsample_law<Holds, Extents...>;
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    const auto by = height_width::of(at[0]);
    inferred result{detail::is_image(operands[0].extents) && by.height > 0 && by.width > 0, operands[0]};
    if (!result.holds) return result;
    shape& s = result.value.extents;
    s[s.order - 2] = dims.multiply(s[s.order - 2], by.height);
    s[s.order - 1] = dims.multiply(s[s.order - 1], by.width);
    return result;
  }
  static constexpr auto value(const attributes& at, auto x) {
    const auto by = height_width::of(at[0]);
    const shape s = x.extents();
    shape one, each;
    for (int d = 0; d < s.order; ++d) {
      one.append(s[d]);
      each.append(s[d]);
      if (d < s.order - 2) continue;
      one.append(1);
      each.append(d == s.order - 2 ? by.height : by.width);
    }
    shape whole = s;
    whole[s.order - 2] = x.owner->dims.multiply(s[s.order - 2], by.height);
    whole[s.order - 1] = x.owner->dims.multiply(s[s.order - 1], by.width);
    return reshape_to(expand_to(reshape_to(x, one), each), whole);
  }
};

/// Linear interpolation between the centres of the elements. v0 packs the factors.
struct upsample_bilinear : upsample_nearest {
  static constexpr bool widens = true;
  static constexpr auto name = "upsample_bilinear";
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    inferred result = upsample_nearest::infer(dims, at, operands);
    const shape& s = operands[0].extents;
    result.holds =
        result.holds && dims.require_elements(s[s.order - 2]) && dims.require_elements(s[s.order - 1]);
    result.value.type = floating(result.value.type);
    return result;
  }
  static constexpr auto value(const attributes& at, auto x) {
    const auto by = height_width::of(at[0]);
    const int last = x.extents().order - 1;
    return along(along(cast_to(x, floating(x.type())), last - 1, by.height), last, by.width);
  }

 private:
  /// Of the `by` elements made from one, those before its centre lie between it and its predecessor, the
  /// others between it and its successor. The outermost elements are their own neighbours.
  static constexpr auto along(auto x, int dim, index_t by) {
    if (by == 1) return x;
    auto& g = *x.owner;
    const shape s = x.extents();
    const index_t n = s[dim], last = g.dims.subtract(n, 1);
    const auto joined = [&](auto a, auto b) { return g.template apply<concat>(attributes{{dim}, 1}, a, b); };
    const auto before = joined(slice_dim(x, dim, 0, 1), slice_dim(x, dim, 0, last));
    const auto after = joined(slice_dim(x, dim, 1, n), slice_dim(x, dim, last, n));
    shape one = s, made = s;
    one.append(1);
    for (int d = one.order - 1; d > dim + 1; --d) one[d] = one[d - 1];
    one[dim + 1] = 1;
    made[dim] = g.dims.multiply(n, by);
    shape phases{1, {by}};
    for (int d = dim + 1; d < s.order; ++d) phases.append(1);
    const auto from_centre =
        reshape_to((g.coordinate(by, x.type()) + 0.5) / static_cast<double>(by) - 0.5, phases);
    const auto neighbour =
        weft::where(weft::less(from_centre, 0), reshape_to(before, one), reshape_to(after, one));
    const auto weight = weft::abs(from_centre);
    const auto nearest = reshape_to(x, one), between = nearest * (1 - weight) + neighbour * weight;
    return reshape_to(weft::where(weft::equal(weight, 0), nearest, between), made);
  }
};

}  // namespace op

/// Each element repeated Factor.height times along the second-to-last dim and Factor.width times along the
/// last: [..., H, W] -> [..., H Factor.height, W Factor.width], for two to four dims and every type. For
/// sequences [B, C, L]: upsample_nearest<height_width{1, 2}>(x). torch.nn.Upsample(scale_factor) for images.
template <height_width Factor, expression X>
constexpr auto upsample_nearest(X x) {
  return apply<op::upsample_nearest, attr<Factor.packed()>>(std::move(x));
}
/// The same size, by linear interpolation in both dims between the centres of the elements; beyond the
/// centres of the outermost elements, their values continue. Integers become f32.
/// torch.nn.Upsample(scale_factor, mode="bilinear"), without align_corners.
template <height_width Factor, expression X>
constexpr auto upsample_bilinear(X x) {
  return apply<op::upsample_bilinear, attr<Factor.packed()>>(std::move(x));
}

}  // namespace weft
