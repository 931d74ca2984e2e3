// SPDX-License-Identifier: MIT
// Ops that copy elements: padding with zeros and concatenation.
//
//   auto both = concat<0>(x, y);      // each operand is copied once, however many there are
#pragma once

#include <weft/op/movement.hpp>

namespace weft::op {

/// The compile-time error for operands of `concat` whose shapes do not match.
template <bool Holds, class... Extents>
struct concat_law {
  static_assert(Holds, "weft: concat: the operands must have the same order and, except along the "
                       "concatenated dim, the same extents");
};

/// Zeros around and between the elements of dim v0: v1 before the first, v3 - 1 between two neighbours; v2 is
/// the resulting extent.
struct pad : rule<1> {
  static constexpr unsigned extents = 0b110;
  static constexpr auto kind = op_kind::copy;
  static constexpr auto name = "pad";
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes& at, const tensor_spec* operands) {
    inferred result{true, operands[0]};
    result.value.extents[static_cast<int>(at[0])] = at[2];
    return result;
  }
  static constexpr auto vjp(auto g, auto y, auto x) { return unpad(g, y, x); }
};

/// v1 zeros before and v2 after the elements of dim v0, whose extent may be dynamic.
struct pad_ends : composed<1> {
  static constexpr auto name = "pad_ends";
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    inferred result{true, operands[0]};
    index_t& e = result.value.extents[static_cast<int>(at[0])];
    e = dims.add(e, at[1] + at[2]);
    return result;
  }
  static constexpr auto value(const attributes& at, auto x) {
    const index_t whole = x.owner->dims.add(x.extents()[static_cast<int>(at[0])], at[1] + at[2]);
    return x.owner->template apply<pad>(attributes{{at[0], at[1], whole, 1}, 4}, x);
  }
};

/// Two operands one after the other along dim v0, in their promoted dtype.
struct concat : rule<2> {
  static constexpr auto kind = op_kind::copy;
  static constexpr auto name = "concat";
  template <bool Holds, class... Extents>
  using law = concat_law<Holds, Extents...>;
  static constexpr dtype operand_type(dtype t) { return t; }
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    const shape &a = operands[0].extents, &b = operands[1].extents;
    const int dim = static_cast<int>(at[0]);
    inferred result{a.order == b.order && dim >= 0 && dim < a.order,
                    {promoted(operands[0].type, operands[1].type), a}};
    for (int i = 0; result.holds && i < a.order; ++i) {
      index_t& e = result.value.extents[i];
      if (i == dim) e = dims.add(a[i], b[i]);
      else result.holds = dims.unify(a[i], b[i], e);
    }
    return result;
  }
  static constexpr auto vjp(auto g, auto y, auto a, auto) {
    const int dim = static_cast<int>(y.attribute(0));
    const index_t middle = a.extents()[dim];
    return std::array{slice_dim(g, dim, 0, middle),
                      slice_dim(g, dim, middle, y.extents()[dim])};
  }
};

}  // namespace weft::op

namespace weft {

/// Whether two operands can be concatenated along dim Dim, counted from the left.
template <index_t Dim, class A, class B>
concept concat_compatible = accepts<op::concat, attr<Dim>, A, B>;

/// `x` with `Before` zeros before and `After` zeros after the elements of dim Dim. Copies `x`. PyTorch's
/// functional.pad for one dim.
template <index_t Dim, index_t Before, index_t After, expression X>
constexpr auto pad(X x) {
  constexpr int dim = normalized_dim(Dim, X::static_shape.order);
  static_assert(dim < X::static_shape.order, "weft: pad: the dim is out of range");
  static_assert(Before >= 0 && After >= 0, "weft: pad: zeros can be added, not removed: use slice to remove");
  if constexpr (X::static_shape[dim] < 0) return apply<op::pad_ends, attr<dim, Before, After>>(std::move(x));
  else if constexpr (Before >= 0 && After >= 0)
    return apply<op::pad, attr<dim, Before, X::static_shape[dim] + Before + After, 1>>(std::move(x));
}

/// The operands one after the other along dim Dim (torch.cat), in their promoted dtype. They have the same
/// number of dims and, except along Dim, the same extents. Each is copied once.
template <index_t Dim, expression A, expression B, expression... Rest>
constexpr auto concat(A a, B b, Rest... rest) {
  constexpr int dim = normalized_dim(Dim, A::static_shape.order);
  auto first = apply<op::concat, attr<dim>>(std::move(a), std::move(b));
  if constexpr (sizeof...(Rest) == 0) return first;
  else return concat<dim>(std::move(first), std::move(rest)...);
}

/// Operands of the same shape along a new dim Dim, as torch.stack: N operands [A, B] with Dim 0 -> [N, A, B].
/// Each is copied once.
template <index_t Dim, expression X, expression... Rest>
constexpr auto stack(X x, Rest... rest) {
  if constexpr (sizeof...(Rest) == 0) return unsqueeze<Dim>(std::move(x));
  else return concat<Dim>(unsqueeze<Dim>(std::move(x)), unsqueeze<Dim>(std::move(rest))...);
}

}  // namespace weft
