// SPDX-License-Identifier: MIT
// Positions of sequences: rotary positions of queries and keys, and figures of whole sequences where ranks
// divide the positions among each other.
//
//   auto y = attention<causal>(rotary(q), rotary(k), v);      // [batch, position, head, feature]
//   auto valid = sum_over_positions(sum(mask));     // the same on every rank along axis cp
#pragma once

#include <weft/device/native.hpp>
#include <weft/op/functions.hpp>
#include <weft/op/movement.hpp>

namespace weft::op {

/// The sum over the ranks that divide the positions of sequences (axis cp), executed by the hooks of the
/// strategy; the operand where nothing is divided. No cotangent flows through it.
struct sum_over_positions : rule<1> {
  static constexpr auto kind = op_kind::native;
  static constexpr auto name = "sum_over_positions";
  static constexpr auto divides = "A -> A";
  static constexpr native_code code{.messages = exchange::in_place};
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    return {true, operands[0]};
  }
  static constexpr auto vjp(auto g, auto, auto) { return no_gradient(g); }
};

/// The compile-time error for operands of `rotary`.
template <bool Holds, class... Extents>
struct rotary_law {
  static_assert(Holds, "weft: rotary: the operand is [batch, position, head, feature], with an even number "
                       "of features");
};
/// The compile-time error for integers.
template <bool Holds, class... Types>
struct rotary_type_law {
  static_assert(Holds, "weft: rotary: the elements must be floating-point numbers");
};

/// Features i and i + D/2 of position t turned by the angle (first + t) base^(-2i/D). v0 holds the bits of
/// the base, v1 is the first position.
struct rotary : composed<1> {
  static constexpr unsigned extents = 0b10;
  static constexpr auto name = "rotary";
  template <bool Holds, class... Extents>
  using law = rotary_law<Holds, Extents...>;
  template <bool Holds, class... Types>
  using type_law = rotary_type_law<Holds, Types...>;
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes&, const tensor_spec* operands) {
    inferred result{true, operands[0]};
    const shape& s = operands[0].extents;
    result.types_fit = is_floating(operands[0].type);
    result.holds = s.order == 4 && (s[3] < 0 || s[3] % 2 == 0);
    if (result.holds) dims.divide(s[3], 2);  // if it is not known now, then checked at run time
    return result;
  }
  static constexpr auto value(const attributes& at, auto x) { return turned(at, x, false); }
  static constexpr auto vjp(auto g, auto y, auto) { return turned(y.attribute_values(), g, true); }

 private:
  static constexpr auto turned(attributes at, auto x, bool back) {
    auto& g = *x.owner;
    const dtype t = x.type();
    const shape s = x.extents();
    const index_t half = g.dims.divide(s[3], 2);
    const auto frequency = weft::pow(number_of(at), g.coordinate(half, t) / g.extent(half, t));
    const auto position = g.coordinate(s[1], t) + g.extent(at[1], t);
    const auto angle = reshape_to(position, shape{3, {s[1], 1, 1}}) / frequency;
    const auto c = weft::cos(angle), sine = weft::sin(angle), by = back ? -sine : sine;
    const auto a = slice_dim(x, 3, 0, half), b = slice_dim(x, 3, half, s[3]);
    return g.template apply<concat>(attributes{{3}, 1}, a * c - b * by, b * c + a * by);
  }
};

}  // namespace weft::op

namespace weft {

/// `x`, summed over the ranks along axis cp, on each of them; without that axis `x`. For statistics of a loss
/// that are about whole sequences: each rank adds up its own positions, and this adds up those of all. A
/// constant in derivatives. Sends x.size() elements; all ranks along cp must evaluate it.
template <expression X>
auto sum_over_positions(X x) {
  return apply<op::sum_over_positions>(std::move(x));
}

/// Rotary positions (Su et al., "RoFormer", 2021) of queries or keys x [B, T, H, D], before `attention`:
/// their products depend on the distance of two positions. Features i and i + D/2 are a pair, as in GPT-NeoX
/// and LLaMA (Hugging Face's layout of weights), which is turned by the angle position * base^(-2i/D).
/// The positions are 0 to T - 1. x keeps its shape and type; bf16 and f16 are computed in f32 and rounded
/// once. D must be even.
template <index_t Base = 10'000, expression X>
constexpr auto rotary(X x) {
  using turn = attr<number_bits(static_cast<double>(Base))[0], 0>;
  return detail::rounded_once([](auto of) { return apply<op::rotary, turn>(std::move(of)); }, std::move(x));
}
/// The same for positions first, first + 1, ...: of later queries and keys, with those of all earlier
/// positions in a cache. Throws shape_error if `first` is negative.
template <index_t Base = 10'000, expression X>
constexpr auto rotary(X x, index_t first) {
  if (first < 0) refuse<shape_error>({"weft: rotary: the first position is ", first});
  using turn = attr<number_bits(static_cast<double>(Base))[0], dyn>;
  const auto turned = [first](auto of) {
    return detail::apply_sized<op::rotary, turn>({first}, std::move(of));
  };
  return detail::rounded_once(turned, std::move(x));
}

}  // namespace weft
