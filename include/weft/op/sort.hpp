// SPDX-License-Identifier: MIT
// Sorting, the largest elements, and running sums and products along a dim.
//
//   auto order = argsort<1>(x);                          // positions, i64
//   auto [values, indices] = topk<-1, 2>(shared(x));     // the two largest of each row, and where they are
// One native op computes positions, and values are gathered at them, so the derivative puts each cotangent
// where its element came from.
#pragma once

#include <weft/op/index.hpp>
#include <weft/op/join.hpp>

namespace weft {

/// Template argument of `sort` and `argsort`: the largest element first.
inline constexpr bool descending = true;
/// Template argument of `topk`: the smallest elements instead of the largest.
inline constexpr bool smallest = true;

}  // namespace weft

namespace weft::op {

namespace detail {
/// The law of the ops that order the elements along dim v0, descending if v1 is 1. v2, if present: how many
/// of them are in the result.
template <class Dims>
constexpr inferred ordered(dtype t, Dims& dims, const attributes& at, const shape& from) {
  inferred result{true, {t, from}};
  if (at.count < 3) return result;
  index_t& e = result.value.extents[static_cast<int>(at[0])];
  result.holds = dims.require_at_most(at[2], e);
  e = at[2];
  return result;
}
}  // namespace detail

/// The compile-time error for taking more elements than a dim has.
template <bool Holds, class... Extents>
struct topk_law {
  static_assert(Holds, "weft: topk: the dim has fewer than k elements");
};

/// The positions along dim v0 of the elements in ascending order, or descending if v1 is 1; i64.
struct argsort : rule<1> {
  static constexpr auto kind = op_kind::native;
  static constexpr auto name = "argsort";
  static constexpr auto divides = "A! -> A!";
  static constexpr native_code code{.op = native_op::argsort};
  template <bool Holds, class... Extents>
  using law = topk_law<Holds, Extents...>;
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    return detail::ordered(dtype::i64, dims, at, operands[0].extents);
  }
  static constexpr auto vjp(auto g, auto, auto) { return no_gradient(g); }
};

/// The first v2 of these positions.
struct argtopk : argsort {
  static constexpr unsigned extents = 0b100;
  static constexpr auto name = "argtopk";
  static constexpr const char* names[] = {"topk", "topk"};
  static constexpr native_code code{.names = names, .named_by = 1, .op = native_op::argsort};
};

/// The elements in sorted order.
struct sort : rule<1> {
  static constexpr auto kind = op_kind::composed;
  static constexpr auto name = "sort";
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    return detail::ordered(operands[0].type, dims, at, operands[0].extents);
  }
  static constexpr auto value(const attributes& at, auto x) {
    return gather_of(x, x.owner->template apply<argsort>(at, x), at[0]);
  }
};

/// The first v2 of these elements.
struct topk : sort {
  static constexpr unsigned extents = 0b100;
  static constexpr auto name = "topk";
  template <bool Holds, class... Extents>
  using law = topk_law<Holds, Extents...>;
  static constexpr auto value(const attributes& at, auto x) {
    return gather_of(x, x.owner->template apply<argtopk>(at, x), at[0]);
  }
};

/// The sums of the elements up to each position along dim v0; if v1 is 1, from each position on.
struct cumsum : rule<1> {
  static constexpr auto kind = op_kind::native;
  static constexpr bool widens = true;
  static constexpr auto name = "cumsum";
  static constexpr auto divides = "A! -> A!";
  static constexpr native_code code{.op = native_op::cumsum};
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    const dtype t = operands[0].type;
    return {true, {is_floating(t) ? t : dtype::i64, operands[0].extents}};
  }
  static constexpr auto vjp(auto g, auto y, auto) {
    return g.owner->template apply<cumsum>(attributes{{y.attribute(0), !y.attribute(1)}, 2}, g);
  }
};

namespace detail {
/// y[i] = x[i + by] along dim v, or 0 where x has no such element; `by` is 1 or -1.
constexpr auto shifted(auto x, index_t dim, int by) {
  auto& dims = x.owner->dims;
  const index_t size = x.extents()[static_cast<int>(dim)], first = by > 0;
  const attributes at{{dim, by < 0, dims.add(size, 1), 1}, 4};
  return slice_dim(x.owner->template apply<pad>(at, x), static_cast<int>(dim), first, dims.add(size, first));
}
}  // namespace detail

/// Along dim v0, with operands a and b: y[i] = a[i] y[i - 1] + b[i], starting with y[0] = b[0]. If v1 is 1,
/// the transposed function of b, from the other end: y[i] = a[i + 1] y[i + 1] + b[i].
struct linear_recurrence : rule<2> {
  static constexpr auto kind = op_kind::native;
  static constexpr bool widens = true;
  static constexpr auto name = "linear_recurrence";
  static constexpr auto divides = "A! A! -> A!";
  static constexpr native_code code{.op = native_op::linear_recurrence};
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes&, const tensor_spec* operands) {
    const shape &a = operands[0].extents, &b = operands[1].extents;
    inferred result{a.order == b.order, operands[0],
                    operands[0].type == operands[1].type && is_floating(operands[0].type)};
    for (int i = 0; result.holds && i < a.order; ++i)
      result.holds = dims.unify(a[i], b[i], result.value.extents[i]);
    return result;
  }
  static constexpr auto vjp(auto g, auto y, auto a, auto) {
    const index_t dim = y.attribute(0), from_end = y.attribute(1);
    const auto of_b = g.owner->template apply<linear_recurrence>(attributes{{dim, !from_end}, 2}, a, g);
    return std::array{from_end ? y * detail::shifted(of_b, dim, -1) : of_b * detail::shifted(y, dim, -1),
                      of_b};
  }
};

/// The products of the elements up to each position along dim v0; if v1 is 1, of those before it.
struct cumprod : rule<1> {
  static constexpr auto kind = op_kind::native;
  static constexpr bool widens = true;
  static constexpr auto name = "cumprod";
  static constexpr auto divides = "A! -> A!";
  static constexpr native_code code{.op = native_op::cumprod};
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    return cumsum::infer(dims, at, operands);
  }
  /// Element k is a factor of y[j] for j >= k (j > k if v1 is 1); the other factors are the elements before k
  /// and those between k and j. The sum over j of g[j] times the latter is a recurrence. There is no division
  /// by elements, which may be 0. Both factors are f64, because one may be too large for f32 where their
  /// product is not, for example where the other is 0.
  static constexpr auto vjp(auto g, auto y, auto x) {
    const index_t dim = y.attribute(0);
    const attributes other{{dim, 1}, 2};
    const auto factors = cast_to(x, dtype::f64);
    auto from = cast_to(g, dtype::f64);
    if (y.attribute(1)) from = detail::shifted(from, dim, 1);
    return cast_to(g.owner->template apply<cumprod>(other, factors) *
                       g.owner->template apply<linear_recurrence>(other, factors, from),
                   g.type());
  }
};

}  // namespace weft::op

namespace weft {

namespace detail {
template <index_t Dim, expression X>
constexpr int dim_to_sort() {
  constexpr int order = X::static_shape.order, dim = normalized_dim(Dim, order);
  static_assert(dim < order,
                "weft: sort, argsort, topk, cumsum, cumprod: the dim is out of range for this operand");
  return dim;
}
[[noreturn, gnu::cold]] inline void refuse_count(index_t k) {
  refuse<value_error>({"weft: topk: cannot return ", k, " elements"});
}
}  // namespace detail

/// Whether dim Dim of an X, counted from the left, has K elements.
template <index_t Dim, index_t K, class X>
concept topk_compatible = accepts<op::topk, attr<Dim, 1, K>, X>;

/// The elements along dim Dim in ascending order, or descending: sort<0, descending>(x). Equal elements keep
/// their order; NaN counts as larger than every number, as in PyTorch. For every element type. The derivative
/// puts each cotangent where its element came from.
template <index_t Dim = -1, bool Descending = false, expression X>
constexpr auto sort(X x) {
  return apply<op::sort, attr<detail::dim_to_sort<Dim, X>(), Descending>>(std::move(x));
}
/// The positions along dim Dim of the elements in sorted order, i64: gather<Dim>(x, argsort<Dim>(x)) is
/// sort<Dim>(x). No derivative.
template <index_t Dim = -1, bool Descending = false, expression X>
constexpr auto argsort(X x) {
  return apply<op::argsort, attr<detail::dim_to_sort<Dim, X>(), Descending>>(std::move(x));
}

/// The result of `topk`: elements, and their positions along the dim as i64.
template <expression Values, expression Indices>
struct topk_result {
  Values values;
  Indices indices;
};

/// The K largest elements along dim Dim, whose extent becomes K, and their positions, the largest first; or
/// the smallest: topk<-1, 2, smallest>(x). Equal elements and NaN as in `sort`. A K above a static extent
/// does not compile; above a dynamic extent it throws shape_error at evaluation. If values and indices are
/// evaluated separately, the elements are sorted twice; in one statement where `x` is shared, once.
template <index_t Dim, index_t K, bool Smallest = false, expression X>
constexpr auto topk(X x) {
  static_assert(K >= 0, "weft: topk: the number of elements must not be negative");
  using how = attr<detail::dim_to_sort<Dim, X>(), !Smallest, K>;
  auto indices = apply<op::argtopk, how>(x);
  auto values = apply<op::topk, how>(std::move(x));
  return topk_result<decltype(values), decltype(indices)>{std::move(values), std::move(indices)};
}
/// The same with K given at run time. Throws value_error if it is negative.
template <index_t Dim, bool Smallest = false, expression X>
constexpr auto topk(X x, index_t k) {
  using how = attr<detail::dim_to_sort<Dim, X>(), !Smallest, dyn>;
  if (k < 0) detail::refuse_count(k);
  auto indices = detail::apply_sized<op::argtopk, how>({k}, x);
  auto values = detail::apply_sized<op::topk, how>({k}, std::move(x));
  return topk_result<decltype(values), decltype(indices)>{std::move(values), std::move(indices)};
}

/// The sums of the elements along dim Dim up to and including each position. Floating types are kept (bf16
/// and f16 are summed in a wider type); integers and bool become i64. The derivative sums from the other end.
template <index_t Dim, expression X>
constexpr auto cumsum(X x) {
  return apply<op::cumsum, attr<detail::dim_to_sort<Dim, X>(), 0>>(std::move(x));
}

/// The products of the elements along dim Dim up to and including each position, as torch.cumprod. Floating
/// types are kept (bf16 and f16 are multiplied in a wider type); integers and bool become i64. Differentiable
/// any number of times, even where elements are 0; a derivative takes two more passes, in f64.
template <index_t Dim, expression X>
constexpr auto cumprod(X x) {
  return apply<op::cumprod, attr<detail::dim_to_sort<Dim, X>(), 0>>(std::move(x));
}

}  // namespace weft
