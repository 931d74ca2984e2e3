// SPDX-License-Identifier: MIT
// Positions in sequences: rotary positions of queries and keys, and statistics of whole sequences where ranks
// divide the positions among themselves.
//
//   auto y = attention<causal>(rotary(q), rotary(k), v);      // [batch, position, head, feature]
//   auto turned = rotary<500'000, rope_scaling{.factor = 32}>(q);                 // as Llama 3.2
//   auto valid = sum_over_positions(sum(mask));     // the same on every rank along axis cp
#pragma once

#include <numbers>

#include <weft/device/native.hpp>
#include <weft/op/functions.hpp>
#include <weft/op/index.hpp>
#include <weft/op/join.hpp>

namespace weft {

/// Rotary positions for longer sequences than a model was first trained for, as in Llama 3.1 and later:
/// `rope_scaling` of its config.json, of type "llama3". Pairs of features that make fewer than
/// low_freq_factor turns within the original positions turn `factor` times as slowly, those that make more
/// than high_freq_factor turns are unchanged, and those between are interpolated. The factor 1 changes
/// nothing.
struct rope_scaling {
  number_argument factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  index_t original_max_position_embeddings = 8192;
};

}  // namespace weft

namespace weft::op {

/// The sum over the ranks that divide the positions of sequences (axis cp), executed by the hooks of the
/// strategy; the operand itself where ranks do not divide them. No cotangent flows through it.
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

/// The compile-time error for operands of `rotary` whose shapes do not match.
template <bool Holds, class... Extents>
struct rotary_law {
  static_assert(Holds,
                "weft: rotary: the operand must be [batch, position, head, feature], with an even number of "
                "features, and positions [position] or [batch, position]");
};
/// The compile-time error for operands of `rotary` of the wrong type.
template <bool Holds, class... Types>
struct rotary_type_law {
  static_assert(Holds, "weft: rotary: the elements must be floating-point numbers, and positions integers");
};

/// Base of rotary positions: features i and i + D/2 are rotated by the angle position * base^(-2i/D), or
/// less. v0 holds the bits of the base; v2 to v5 hold the members of a rope_scaling, its floating-point
/// members as bits; v2 is 0 without one.
template <int Arity>
struct turns_pairs : composed<Arity> {
  template <bool Holds, class... Extents>
  using law = rotary_law<Holds, Extents...>;
  template <bool Holds, class... Types>
  using type_law = rotary_type_law<Holds, Types...>;
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    const shape& s = operands[0].extents;
    return {s.order == 4 && (s[3] < 0 || s[3] % 2 == 0), operands[0], is_floating(operands[0].type)};
  }

 protected:
  /// `position` is [position] or [batch, position].
  static constexpr auto turned(const attributes& at, auto x, auto position, bool back) {
    auto& g = *x.owner;
    const dtype t = x.type();
    const shape s = x.extents();
    const index_t half = g.dims.divide(s[3], 2);
    const auto positions_per_radian = weft::pow(number_of(at, 0), g.coordinate(half, t) / g.extent(half, t));
    shape of_heads = position.extents();
    of_heads.append(1);
    of_heads.append(1);
    auto angle = reshape_to(cast_to(position, t), of_heads) / positions_per_radian;
    if (at[2] != 0) {
      const double factor = number_of(at, 2), low = number_of(at, 3), high = number_of(at, 4);
      const auto turns = static_cast<double>(at[5]) / (2 * std::numbers::pi * positions_per_radian);
      const auto share = weft::minimum(weft::maximum((turns - low) / (high - low), 0), 1);
      angle = angle * (share + (1 - share) / factor);
    }
    const auto c = weft::cos(angle), sine = weft::sin(angle), by = back ? -sine : sine;
    const auto a = slice_dim(x, 3, 0, half), b = slice_dim(x, 3, half, s[3]);
    return g.template apply<concat>(attributes{{3}, 1}, a * c - b * by, b * c + a * by);
  }
};

/// Rotary positions v1, v1 + 1, ...
struct rotary : turns_pairs<1> {
  static constexpr unsigned extents = 0b10;
  static constexpr auto name = "rotary";
  static constexpr auto value(const attributes& at, auto x) {
    return turned(at, x, positions_of(x, at[1]), false);
  }
  static constexpr auto vjp(auto g, auto y, auto) {
    const attributes at = y.attribute_values();
    return turned(at, g, positions_of(g, at[1]), true);
  }

 private:
  static constexpr auto positions_of(auto x, index_t first) {
    return x.owner->coordinate(x.extents()[1], x.type()) + x.owner->extent(first, x.type());
  }
};
/// Rotary positions given by operand 1.
struct rotary_at : turns_pairs<2> {
  static constexpr auto name = "rotary_at";
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    inferred result = turns_pairs<2>::infer(dims, at, operands);
    const shape &s = operands[0].extents, &positions = operands[1].extents;
    result.types_fit &= is_index(operands[1].type);
    result.holds &= positions.order == 1 || positions.order == 2;
    for (int d = 0; d < positions.order && result.holds; ++d) {
      index_t& e = result.value.extents[2 - positions.order + d];
      result.holds = dims.unify(s[2 - positions.order + d], positions[d], e);
    }
    return result;
  }
  static constexpr auto value(const attributes& at, auto x, auto positions) {
    return turned(at, x, positions, false);
  }
  static constexpr auto vjp(auto g, auto y, auto, auto positions) {
    return std::array{turned(y.attribute_values(), g, positions, true), no_gradient(g)};
  }
};

}  // namespace weft::op

namespace weft {

namespace detail {
template <index_t Base, index_t First, rope_scaling S>
constexpr auto attributes_of_rotary() {
  static_assert(Base > 0 && S.factor > 0 && S.original_max_position_embeddings > 0 &&
                    S.low_freq_factor < S.high_freq_factor,
                "weft: rotary: base, factor and original positions must be positive, and low_freq_factor "
                "must be less than high_freq_factor");
  constexpr index_t base = number_bits(static_cast<double>(Base))[0];
  if constexpr (S.factor == 1) return attr<base, First>{};
  else
    return attr<base, First, S.factor.bits, S.low_freq_factor.bits, S.high_freq_factor.bits,
                S.original_max_position_embeddings>{};
}
template <index_t Base, index_t First, rope_scaling Scaling>
using rotary_attributes = decltype(attributes_of_rotary<Base, First, Scaling>());
}  // namespace detail

/// `x` summed over the ranks along axis cp, on each of them; `x` itself without that axis. For statistics of
/// whole sequences in a loss: each rank adds up its own positions, and this op adds up those sums. A constant
/// in derivatives. Sends x.size() elements; all ranks along cp must evaluate it.
template <expression X>
auto sum_over_positions(X x) {
  return apply<op::sum_over_positions>(std::move(x));
}

/// Rotary positions (Su et al., "RoFormer", 2021) of queries or keys x [B, T, H, D], applied before
/// `attention`, so that products of queries and keys depend on the distance of their positions. Features i
/// and i + D/2 are a pair, as in GPT-NeoX and LLaMA (Hugging Face's layout of weights), and are rotated by
/// the angle position * base^(-2i/D). The positions are 0 to T - 1. x keeps its shape and type; bf16 and f16
/// are computed in f32 and rounded once. D must be even. `Scaling`: for longer sequences than a model was
/// first trained for.
template <index_t Base = 10'000, rope_scaling Scaling = rope_scaling{}, expression X>
constexpr auto rotary(X x) {
  using turn = detail::rotary_attributes<Base, 0, Scaling>;
  return detail::rounded_once([](auto of) { return apply<op::rotary, turn>(std::move(of)); }, std::move(x));
}
/// The same for positions first, first + 1, ...: for later queries and keys, when those of all earlier
/// positions are in a cache. Throws shape_error if `first` is negative.
template <index_t Base = 10'000, rope_scaling Scaling = rope_scaling{}, expression X>
constexpr auto rotary(X x, index_t first) {
  if (first < 0) refuse<shape_error>({"weft: rotary: the first position must be 0 or more, not ", first});
  using turn = detail::rotary_attributes<Base, dyn, Scaling>;
  const auto turned = [first](auto of) {
    return detail::apply_sized<op::rotary, turn>({first}, std::move(of));
  };
  return detail::rounded_once(turned, std::move(x));
}
/// The same for given positions, integers [T] or [B, T]: for sequences that are padded on the left, and where
/// ranks divide positions (axis cp), for those of this rank: rotary(q, own.positions()).
template <index_t Base = 10'000, rope_scaling Scaling = rope_scaling{}, expression X, expression Positions>
constexpr auto rotary(X x, Positions positions) {
  using turn = detail::rotary_attributes<Base, 0, Scaling>;
  const auto turned = [p = std::move(positions)](auto of) {
    return apply<op::rotary_at, turn>(std::move(of), p);
  };
  return detail::rounded_once(turned, std::move(x));
}

}  // namespace weft
