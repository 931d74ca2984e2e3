// SPDX-License-Identifier: MIT
// Movement ops: the same elements at other indices.
//
// Views (reshape, permute, expand, slice, flip) are free where the consumer can read by strides. Ops that
// copy are in op/join.hpp.
//
//   auto q = slice<2>(qkv, 0, 768);         // qkv[:, :, 0:768]
//   auto rows = reshape<dyn, 768>(x);       // one extent that is dyn is inferred
#pragma once

#include <string>

#include <weft/op/rule.hpp>

namespace weft::op {

/// The compile-time error for a reshape to a different number of elements.
template <bool Holds, class From, class... To>
struct reshape_law {
  static_assert(Holds, "weft: reshape: the shapes must have the same number of elements, and at "
                       "most one extent may be left to infer");
};
/// The compile-time error for an expansion of an extent other than 1.
template <bool Holds, class... Extents>
struct expand_law {
  static_assert(Holds, "weft: expand: an extent can grow only from 1");
};
/// The compile-time error for dims that are not a permutation.
template <bool Holds, class... Extents>
struct permute_law {
  static_assert(Holds, "weft: permute: each dim of the operand must be named once");
};
/// The compile-time error for a dim or bound out of range.
template <bool Holds, class... Extents>
struct dims_law {
  static_assert(Holds, "weft: a dim or bound is out of range for this operand");
};

/// Base of views: different strides over the operand's memory.
template <int Arity>
struct view : rule<Arity> {
  static constexpr auto kind = op_kind::view;
  template <bool Holds, class... Extents>
  using law = dims_law<Holds, Extents...>;
};

/// The same elements in row-major order with other extents, the attributes.
struct reshape : view<1> {
  static constexpr unsigned extents = ~0u;
  static constexpr auto name = "reshape";
  template <bool Holds, class... Extents>
  using law = reshape_law<Holds, Extents...>;
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    inferred result = reshaped(dims, operands[0].extents, shape_of(at));
    result.value.type = operands[0].type;
    return result;
  }
  static constexpr auto vjp(auto g, auto, auto x) { return reshape_to(g, x.extents()); }
};

/// Dim i of the result is dim v[i] of the operand.
struct permute : view<1> {
  static constexpr auto name = "permute";
  template <bool Holds, class... Extents>
  using law = permute_law<Holds, Extents...>;
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes& at, const tensor_spec* operands) {
    const shape& from = operands[0].extents;
    inferred result{at.count == from.order, operands[0]};
    int seen = 0;
    for (int i = 0; i < at.count && i < from.order; ++i) {
      const int d = static_cast<int>(at[i]);  // does not count from the right
      if (d < 0 || d >= from.order || (seen >> d & 1)) return {false, operands[0]};
      seen |= 1 << d;
      result.value.extents[i] = from[d];
    }
    return result;
  }
  static constexpr auto vjp(auto g, auto y, auto) {
    attributes inverse = y.attribute_values();
    for (int i = 0; i < inverse.count; ++i) inverse[static_cast<int>(y.attribute(i))] = i;
    return permute_dims(g, inverse);
  }
};

/// Repeats extents of 1 and adds dims on the left; the attributes are the resulting extents.
struct expand : view<1> {
  static constexpr unsigned extents = ~0u;
  static constexpr auto name = "expand";
  template <bool Holds, class... Extents>
  using law = expand_law<Holds, Extents...>;
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    inferred result{true, {operands[0].type, shape_of(at)}};
    shape& to = result.value.extents;
    const shape& from = operands[0].extents;
    if (to.order < from.order) return {false, operands[0]};
    for (int i = 0; i < to.order; ++i)
      if (!is_extent<Dims>(to[i])) return {false, operands[0]};
    for (int i = 0; i < from.order; ++i)
      if (from.from_right(i) != 1) {
        index_t& e = to[to.order - 1 - i];
        result.holds &= dims.unify(from.from_right(i), e, e, check_kind::equal_in_broadcast);
      }
    return result;
  }
  static constexpr auto vjp(auto g, auto, auto x) { return sum_to(g, x.extents()); }
};

/// Elements start, start + step, ... below stop of dim v0; attributes: dim, start, stop, step. If a bound or
/// the extent is not known at compile time, bounds are checked when the program first sees the sizes
/// (run/specialization.hpp).
struct slice : view<1> {
  static constexpr unsigned extents = 0b110;
  static constexpr auto name = "slice";
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    inferred result{true, operands[0]};
    const int dim = static_cast<int>(at[0]);
    index_t& e = result.value.extents[dim];
    const bool known = at[1] >= 0 && at[2] >= 0;
    result.holds = at[3] > 0 && (!known || at[1] <= at[2]) && (e < 0 || (at[1] <= e && at[2] <= e));
    if (!result.holds) return result;
    e = dims.divide_up(dims.subtract(at[2], at[1]), at[3]);
    return result;
  }
  static constexpr auto vjp(auto g, auto y, auto x) { return unslice(g, y, x); }
};

/// Dim v0 in reverse order.
struct flip : view<1> {
  static constexpr auto name = "flip";
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    return {true, operands[0]};
  }
  static constexpr auto vjp(auto g, auto y, auto) {
    return g.owner->template apply<flip>(y.attribute_values(), g);
  }
};

/// The operand unchanged; no cotangent flows through it.
struct detach : view<1> {
  static constexpr auto name = "detach";
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    return {true, operands[0]};
  }
  static constexpr auto vjp(auto g, auto, auto) { return no_gradient(g); }
};

/// The operand as the variable of a derivative: `grad` takes the cotangent of this node, not of the operand.
struct differentiated_at : view<1> {
  static constexpr auto name = "differentiated_at";
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    return {true, operands[0]};
  }
  static constexpr auto vjp(auto g, auto, auto) { return g; }
};

/// Dim v0 split into two dims: v1 parts, and the extent of each part.
struct unflatten : rule<1> {
  static constexpr auto kind = op_kind::composed;
  static constexpr auto name = "unflatten";
  template <bool Holds, class... Extents>
  using law = reshape_law<Holds, Extents...>;

  template <class Dims>
  static constexpr shape target(Dims& dims, const attributes& at, const shape& from) {
    shape to;
    for (int i = 0; i < from.order; ++i) {
      if (i == at[0]) {
        to.append(at[1]);
        to.append(dims.divide(from[i], at[1]));
      } else {
        to.append(from[i]);
      }
    }
    return to;
  }
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    const shape& from = operands[0].extents;
    const index_t e = from[static_cast<int>(at[0])];
    if (from.order == max_order || at[1] == 0 || (e >= 0 && at[1] > 0 && e % at[1]))
      return {false, operands[0]};
    return {true, {operands[0].type, target(dims, at, from)}};
  }
  static constexpr auto value(const attributes& at, auto x) {
    return reshape_to(x, target(x.owner->dims, at, x.extents()));
  }
};

/// Dims v0 to v1, both included, merged into one.
struct flatten : rule<1> {
  static constexpr auto kind = op_kind::composed;
  static constexpr auto name = "flatten";
  template <bool Holds, class... Extents>
  using law = dims_law<Holds, Extents...>;

  template <class Dims>
  static constexpr shape target(Dims& dims, const attributes& at, const shape& from) {
    shape to;
    for (int i = 0; i < from.order; ++i)
      if (i <= at[0] || i > at[1]) to.append(from[i]);
      else to[to.order - 1] = dims.multiply(to[to.order - 1], from[i]);
    return to;
  }
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    return {at[0] <= at[1], {operands[0].type, target(dims, at, operands[0].extents)}};
  }
  static constexpr auto value(const attributes& at, auto x) {
    return reshape_to(x, target(x.owner->dims, at, x.extents()));
  }
};

/// A new dim of extent 1 before dim v0.
struct unsqueeze : rule<1> {
  static constexpr auto kind = op_kind::composed;
  static constexpr auto name = "unsqueeze";
  template <bool Holds, class... Extents>
  using law = dims_law<Holds, Extents...>;

  static constexpr shape target(const attributes& at, const shape& from) {
    shape to;
    for (int i = 0; i <= from.order; ++i) {
      if (i == at[0]) to.append(1);
      if (i < from.order) to.append(from[i]);
    }
    return to;
  }
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes& at, const tensor_spec* operands) {
    const shape& from = operands[0].extents;
    if (from.order == max_order || at[0] > from.order) return {false, operands[0]};
    return {true, {operands[0].type, target(at, from)}};
  }
  static constexpr auto value(const attributes& at, auto x) { return reshape_to(x, target(at, x.extents())); }
};

/// Part v2 of v1 equal parts of dim v0.
struct chunk : rule<1> {
  static constexpr auto kind = op_kind::composed;
  static constexpr auto name = "chunk";
  template <bool Holds, class... Extents>
  using law = reshape_law<Holds, Extents...>;
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    inferred result{true, operands[0]};
    index_t& e = result.value.extents[static_cast<int>(at[0])];
    result.holds = 0 <= at[2] && at[2] < at[1] && (e < 0 || e % at[1] == 0);
    if (!result.holds) return result;
    e = dims.divide(e, at[1]);
    return result;
  }
  static constexpr auto value(const attributes& at, auto x) {
    auto& dims = x.owner->dims;
    const int dim = static_cast<int>(at[0]);
    const index_t part = dims.divide(x.extents()[dim], at[1]);
    return slice_dim(x, dim, dims.multiply(part, at[2]), dims.multiply(part, at[2] + 1));
  }
};

}  // namespace weft::op

namespace weft {

namespace detail {
// Not templates, so that their code is not instantiated for each expression.

[[noreturn, gnu::cold]] inline void refuse_bounds(const shape& s, int dim, index_t start, index_t stop) {
  refuse<shape_error>({"weft: slice: dim ", dim, " of ", s, " from ", start, " to ", stop,
                       ": bounds must satisfy 0 <= start <= stop <= extent"});
}
[[noreturn, gnu::cold]] inline void refuse_parts(const shape& s, int dim, index_t parts) {
  refuse<shape_error>({"weft: unflatten: dim ", dim, " of ", s, " cannot become ", parts, " parts"});
}
/// Copies the dynamic extents of `to` into `sizes`.
template <index_t... To>
constexpr void take_dynamic(const extents<To...>& to, index_t* sizes) {
  for (int i = 0; i < extents<To...>::order; ++i)
    if (extents<To...>::static_shape[i] == dyn) *sizes++ = to[i];
}

/// Applies `Op`, whose attributes are extents, with the extents `to`; dynamic ones are passed at run time.
template <class Op, expression X, index_t... To>
constexpr auto apply_to(X x, const extents<To...>& to) {
  constexpr int dynamic = extents<To...>::dynamic_count;
  if constexpr (dynamic == 0) {
    return apply<Op, attr<To...>>(std::move(x));
  } else {
    index_t sizes[std::size_t{dynamic}];
    take_dynamic(to, sizes);
    return apply_sized<Op, attr<To...>>(sizes, std::move(x));
  }
}
}  // namespace detail

/// Whether `X` can be reshaped to these extents.
template <class X, index_t... To>
concept reshape_compatible = accepts<op::reshape, attr<To...>, X>;
/// Whether `X` can be expanded to these extents.
template <class X, index_t... To>
concept expand_compatible = accepts<op::expand, attr<To...>, X>;
/// `x` with the extents `to` and the same elements in row-major order. Dynamic extents of `to` must be given:
/// reshape(x, extents<dyn, 768>{n}); the overload below infers one. A different number of elements does not
/// compile if extents are static, and throws shape_error at evaluation if they are dynamic.
template <expression X, index_t... To>
constexpr auto reshape(X x, extents<To...> to) {
  return detail::apply_to<op::reshape>(std::move(x), to);
}

/// The same with at most one `dyn` extent, which is inferred: reshape<dyn, 768>(x).
template <index_t... To, expression X>
constexpr auto reshape(X x) {
  static_assert(extents<To...>::dynamic_count <= 1,
                "weft: reshape: at most one extent may be inferred; give the others a number");
  static_assert(extents<To...>::dynamic_count == 0 || ((To != 0) && ...),
                "weft: reshape: with an extent of 0, the one left open cannot be inferred: give it");
  return apply<op::reshape, attr<To...>>(std::move(x));
}

/// Permutes dims: dim i of the result is dim Dims[i] of `x`, as torch.permute.
template <index_t... Dims, expression X>
constexpr auto permute(X x) {
  return apply<op::permute, attr<normalized_dim(Dims, X::static_shape.order)...>>(std::move(x));
}

namespace detail {
template <int Order, int A, int B, expression X, int... I>
constexpr auto swap_dims(X x, std::integer_sequence<int, I...>) {
  return weft::permute<(I == A ? B : I == B ? A : I)...>(std::move(x));
}
}  // namespace detail

/// `x` with two dims swapped, by default the last two. A view: no copy where the consumer reads by strides.
template <index_t A = -2, index_t B = -1, expression X>
constexpr auto transpose(X x) {
  constexpr int order = X::static_shape.order;
  constexpr int a = normalized_dim(A, order), b = normalized_dim(B, order);
  static_assert(a < order && b < order, "weft: transpose: a dim is out of range");
  return detail::swap_dims<order, a, b>(std::move(x),
                                        std::make_integer_sequence<int, order>{});
}

/// Repeats static extents of 1 to those of `to` and adds dims on the left, without a copy. Dynamic extents of
/// `x` are not repeated; `to` gives them again, and they throw shape_error at evaluation if they differ. The
/// derivative sums.
template <expression X, index_t... To>
constexpr auto expand(X x, extents<To...> to) {
  return detail::apply_to<op::expand>(std::move(x), to);
}

/// The same with static extents: expand<32, 10>(x).
template <index_t... To, expression X>
constexpr auto expand(X x) {
  static_assert(((To >= 0) && ...),
                "weft: expand: an extent must be a number of elements; pass dynamic extents as values: "
                "expand(x, extents<dyn, 3>{n})");
  return apply<op::expand, attr<To...>>(std::move(x));
}

/// x[..., start:stop:step, ...] in dim Dim with bounds known at compile time, 0 <= start <= stop <= extent.
/// Unlike in Python, bounds do not count from the end and are not clamped. Bounds beyond a static extent do
/// not compile; beyond a dynamic extent they throw shape_error at evaluation. A view.
template <index_t Dim, index_t Start, index_t Stop, index_t Step = 1, expression X>
constexpr auto slice(X x) {
  constexpr int dim = normalized_dim(Dim, X::static_shape.order);
  static_assert(dim < X::static_shape.order, "weft: slice: the dim is out of range");
  static_assert(
      0 <= Start && Start <= Stop && Step > 0,
      "weft: slice: bounds count from the beginning, 0 <= start <= stop, and the step must be positive");
  if constexpr (0 <= Start && Start <= Stop && Step > 0)
    return apply<op::slice, attr<dim, Start, Stop, Step>>(std::move(x));
}

/// The same with bounds given at run time; the extent of the result is dynamic. The call throws shape_error
/// unless 0 <= start <= stop, and evaluation throws it if stop exceeds a dynamic extent.
template <index_t Dim, index_t Step = 1, expression X>
constexpr auto slice(X x, index_t start, index_t stop) {
  constexpr int dim = normalized_dim(Dim, X::static_shape.order);
  static_assert(dim < X::static_shape.order, "weft: slice: the dim is out of range");
  static_assert(Step > 0, "weft: slice: the step must be positive");
  constexpr index_t extent = X::static_shape[dim];
  if (start < 0 || stop < start || (extent >= 0 && stop > extent))
    detail::refuse_bounds(X::static_shape, dim, start, stop);
  return detail::apply_sized<op::slice, attr<dim, dyn, dyn, Step>>({start, stop}, std::move(x));
}

/// Compile-time error: the step is a template argument.
template <index_t Dim, expression X>
constexpr X slice(X x, index_t, index_t, index_t) {
  static_assert(detail::unsupported<X>,
                "weft: slice: the step is a template argument: slice<0, 2>(x, start, stop)");
  return x;
}

/// `x` with the order of the elements along dim Dim reversed. A view.
template <index_t Dim, expression X>
constexpr auto flip(X x) {
  constexpr int dim = normalized_dim(Dim, X::static_shape.order);
  static_assert(dim < X::static_shape.order, "weft: flip: the dim is out of range");
  return apply<op::flip, attr<dim>>(std::move(x));
}

/// Splits dim Dim into two, [parts, extent / parts]. The call throws shape_error if `parts` is not positive,
/// and evaluation throws it if `parts` does not divide the extent.
template <index_t Dim, expression X>
constexpr auto unflatten(X x, index_t parts) {
  constexpr int dim = normalized_dim(Dim, X::static_shape.order);
  static_assert(dim < X::static_shape.order, "weft: unflatten: the dim is out of range");
  if (parts <= 0) detail::refuse_parts(X::static_shape, dim, parts);
  return detail::apply_sized<op::unflatten, attr<dim, dyn>>({parts}, std::move(x));
}
/// The same with the number of parts known at compile time.
template <index_t Dim, index_t Parts, expression X>
constexpr auto unflatten(X x) {
  constexpr int dim = normalized_dim(Dim, X::static_shape.order);
  static_assert(dim < X::static_shape.order, "weft: unflatten: the dim is out of range");
  static_assert(Parts > 0, "weft: unflatten: the number of parts must be positive");
  if constexpr (Parts > 0) return apply<op::unflatten, attr<dim, Parts>>(std::move(x));
}

/// Merges dims First to Last, both included, into one.
template <index_t First, index_t Last, expression X>
constexpr auto flatten(X x) {
  constexpr int order = X::static_shape.order;
  constexpr int first = normalized_dim(First, order), last = normalized_dim(Last, order);
  static_assert(first <= last && last < order, "weft: flatten: a dim is out of range");
  return apply<op::flatten, attr<first, last>>(std::move(x));
}

/// Part I of Parts equal parts of dim Dim. If Parts does not divide the extent, this does not compile, or
/// throws shape_error at evaluation if the extent is dynamic (torch.chunk makes the last part smaller).
template <index_t Dim, index_t Parts, index_t I, expression X>
constexpr auto chunk(X x) {
  constexpr int dim = normalized_dim(Dim, X::static_shape.order);
  static_assert(dim < X::static_shape.order, "weft: chunk: the dim is out of range");
  static_assert(0 <= I && I < Parts, "weft: chunk: the parts are numbered 0 to Parts - 1");
  if constexpr (0 <= I && I < Parts) return apply<op::chunk, attr<dim, Parts, I>>(std::move(x));
}

/// Adds a dim of extent 1 before dim Dim; -1 adds it after the last.
template <index_t Dim, expression X>
constexpr auto unsqueeze(X x) {
  return apply<op::unsqueeze, attr<normalized_dim(Dim, X::static_shape.order + 1)>>(std::move(x));
}

/// Removes dim Dim, whose static extent must be 1: anything else does not compile.
template <index_t Dim, expression X>
constexpr auto squeeze(X x) {
  constexpr int order = X::static_shape.order, dim = normalized_dim(Dim, order);
  static_assert(dim < order, "weft: squeeze: the dim is out of range");
  if constexpr (dim < order) {
    static_assert(X::static_shape[dim] == 1,
                  "weft: squeeze: the extent is not 1 in the type: select<1, 0>(x) takes the first element");
    if constexpr (order == 1) return reshape(std::move(x), extents<>{});
    else return flatten<(dim + 1 < order ? dim : dim - 1), (dim + 1 < order ? dim + 1 : dim)>(std::move(x));
  }
}

/// `x` without a gradient: the backward pass sends nothing to its operands.
template <expression X>
constexpr auto detach(X x) {
  return apply<op::detach>(std::move(x));
}

/// An expression with the type and shape of the expression `x` whose elements are all `value`, 0 or 1. It has
/// no derivative. For the shape of a tensor, see tensor/create.hpp.
template <expression X>
  requires(!detail::is_leaf<X>)
constexpr auto full_like(X x, typename X::value_type value) {
  const auto v = detach(std::move(x));
  if constexpr (std::is_same_v<typename X::value_type, bool>)
    return where(logical_and(v, logical_not(v)), v, value);
  else return where(less(v, v), v, value);
}
template <expression X>
  requires(!detail::is_leaf<X>)
constexpr auto zeros_like(X x) {
  return full_like(std::move(x), typename X::value_type(0));
}
template <expression X>
  requires(!detail::is_leaf<X>)
constexpr auto ones_like(X x) {
  return full_like(std::move(x), typename X::value_type(1));
}

}  // namespace weft
