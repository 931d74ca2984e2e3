// SPDX-License-Identifier: MIT
// Selection of one index of a dim, which is removed: torch.select, and x[i] for tensors.
//
//   auto row = select<0>(x, i);       // x[i] in PyTorch; [B, T, C] -> [T, C]
#pragma once

#include <weft/op/movement.hpp>

namespace weft::op {

/// The compile-time error for an index out of range.
template <bool Holds, class... Extents>
struct select_law {
  static_assert(Holds, "weft: select: the index is out of range for this operand");
};

/// The elements at index v1 of dim v0, which is removed.
struct select : rule<1> {
  static constexpr auto kind = op_kind::composed;
  static constexpr auto name = "select";
  template <bool Holds, class... Extents>
  using law = select_law<Holds, Extents...>;

  static constexpr shape without(const shape& from, index_t dim) {
    shape to;
    for (int i = 0; i < from.order; ++i)
      if (i != dim) to.append(from[i]);
    return to;
  }
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    const shape& from = operands[0].extents;
    const bool inside = dims.require_at_most(0, at[1]) &&
                        dims.require_at_most(dims.add(at[1], 1), from[static_cast<int>(at[0])]);
    return {inside, {operands[0].type, without(from, at[0])}};
  }
  static constexpr auto value(const attributes& at, auto x) {
    const auto one = slice_dim(x, static_cast<int>(at[0]), at[1], x.owner->dims.add(at[1], 1));
    return reshape_to(one, without(x.extents(), at[0]));
  }
};

}  // namespace weft::op

namespace weft {

/// x[..., I, ...] in dim Dim, which is removed; I must be at least 0. An index beyond a static extent does
/// not compile; beyond a dynamic one it throws shape_error at evaluation. A view.
template <index_t Dim, index_t I, expression X>
constexpr auto select(X x) {
  constexpr int dim = normalized_dim(Dim, X::static_shape.order);
  static_assert(dim < X::static_shape.order, "weft: select: the dim is out of range");
  static_assert(I >= 0, "weft: select: an index given as a template argument must not be negative");
  return apply<op::select, attr<dim, I>>(std::move(x));
}
namespace detail {
[[noreturn, gnu::cold]] inline void refuse_from_the_right(index_t i, int dim) {
  throw value_error("weft: select: index " + std::to_string(i) + " counts from the right of dim " +
                    std::to_string(dim) + ", whose extent is not known before the operand is evaluated");
}
}  // namespace detail

/// The same with an index given at run time; x[i] is select<0>(x, i). Negative indices count from the right.
/// If `x` is a tensor or the extent is static, the call throws value_error for an index out of range.
/// Otherwise the call throws value_error for a negative index, and evaluation throws shape_error for one out
/// of range.
template <index_t Dim, expression X>
constexpr auto select(X x, index_t i) {
  constexpr int dim = normalized_dim(Dim, X::static_shape.order);
  static_assert(dim < X::static_shape.order, "weft: select: the dim is out of range");
  if constexpr (requires { x.extents(); }) i = detail::checked_position(x.extents(), dim, i);
  else if constexpr (X::static_shape[dim] >= 0) i = detail::checked_position(X::static_shape, dim, i);
  else if (i < 0) detail::refuse_from_the_right(i, dim);
  return detail::apply_sized<op::select, attr<dim, dyn>>({i}, std::move(x));
}

}  // namespace weft
