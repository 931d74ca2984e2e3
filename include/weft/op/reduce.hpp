// SPDX-License-Identifier: MIT
// Reductions: sum, mean, variance, amax, amin, logsumexp over any set of dims. argmax and argmin are in
// op/index.hpp.
//
//   sum(x)                          // all dims: a scalar
//   mean(x, dims<-1>, keepdim)      // PyTorch's x.mean(-1, keepdim=True)
//
// All are formulas over three primitives, which reduce adjacent dims and keep them with extent 1; a kernel
// fuses a primitive with the element-wise ops around it.
#pragma once

#include <bit>
#include <concepts>
#include <limits>

#include <weft/op/functions.hpp>
#include <weft/op/rule.hpp>

namespace weft {

/// Type of `dims`.
template <index_t... Dims>
struct dims_t {};
/// Dims as a function argument, sum(x, dims<0, -1>); negative ones count from the right.
template <index_t... Dims>
inline constexpr dims_t<Dims...> dims{};

/// Type of `keepdim`.
struct keepdim_t {
  keepdim_t() = default;
  /// Compile-time error: `keepdim` is not a bool.
  template <std::same_as<bool> Keep>
  constexpr keepdim_t(Keep) {
    static_assert(
        detail::unsupported<Keep>,
        "weft: a reduction keeps its dims if the last argument is `keepdim`, not if it is true: mean(x, "
        "dims<1>, keepdim)");
  }
};
/// Makes a reduction keep the reduced dims with extent 1.
inline constexpr keepdim_t keepdim{};

}  // namespace weft

namespace weft::op {

/// Base of the reduction primitives: reduces dims v0 to v1 - 1 and keeps them with extent 1.
struct reduction : rule<1> {
  static constexpr auto kind = op_kind::reduce;
  static constexpr bool widens = true;
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes& at, const tensor_spec* operands) {
    inferred result{true, operands[0]};
    for (index_t i = at[0]; i < at[1]; ++i) result.value.extents[static_cast<int>(i)] = 1;
    return result;
  }
};

/// Sum over dims v0 to v1 - 1.
struct reduce_sum : reduction {
  static constexpr auto name = "reduce_sum";
  static constexpr auto vjp(auto g, auto, auto x) { return expand_to(g, x.extents()); }
};

/// Maximum or minimum over dims v0 to v1 - 1; NaN if an element is NaN. Elements equal to the extremum share
/// the cotangent evenly, as in torch.amax.
struct reduce_extremum : reduction {
  static constexpr auto vjp(auto g, auto y, auto x) {
    const auto hit = cast_to(weft::equal(x, y), g.type());
    return hit * (g / sum_dims(hit, y.attribute(0), y.attribute(1)));
  }
};
struct reduce_max : reduce_extremum {
  static constexpr auto name = "reduce_max";
};
struct reduce_min : reduce_extremum {
  static constexpr auto name = "reduce_min";
};

/// A set of dims as bits, and whether to keep them: the attributes of the reductions below.
struct reduced_dims {
  index_t set = 0;
  bool keep = false;
  constexpr explicit reduced_dims(const attributes& at) : set(at[0]), keep(at[1] != 0) {}
  constexpr bool contains(int dim) const { return set >> dim & 1; }
};

/// Base of reductions over a set of dims: v0 is the set as bits, v1 whether they are kept.
struct dims_reduction : composed<1> {
  static constexpr bool in_floats = true;
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes& at, const tensor_spec* operands) {
    const reduced_dims reduced(at);
    inferred result{true, {floating(operands[0].type), {}}};
    const shape& from = operands[0].extents;
    for (int i = 0; i < from.order; ++i)
      if (!reduced.contains(i)) result.value.extents.append(from[i]);
      else if (reduced.keep) result.value.extents.append(1);
    return result;
  }

 protected:
  /// The result or its cotangent reshaped so that the reduced dims are present with extent 1.
  static constexpr auto with_dims(const attributes& at, auto result, auto x) {
    const reduced_dims reduced(at);
    shape kept = x.extents();
    for (int i = 0; i < kept.order; ++i)
      if (reduced.contains(i)) kept[i] = 1;
    return reshape_to(result, kept);
  }
  static constexpr attributes keeping_dims(attributes at) {
    at[1] = 1;
    return at;
  }
  /// Applies fold(x, first, last) to each run of adjacent dims, and removes the dims if they are not kept.
  static constexpr auto fold_runs(const attributes& at, auto x, auto fold) {
    const reduced_dims reduced(at);
    const shape from = x.extents();
    for (int i = from.order; i > 0; --i) {
      if (!reduced.contains(i - 1)) continue;
      const int last = i;
      while (i > 0 && reduced.contains(i - 1)) --i;
      x = fold(x, i, last);
    }
    return reduced.keep ? x : reshape_to(x, without_dims(reduced, from));
  }
  /// `from` without the dims that are reduced.
  static constexpr shape without_dims(const reduced_dims& reduced, const shape& from) {
    shape rest;
    for (int i = 0; i < from.order; ++i)
      if (!reduced.contains(i)) rest.append(from[i]);
    return rest;
  }
  /// Number of elements reduced to one.
  static constexpr auto folded_count(const attributes& at, auto x) {
    const reduced_dims reduced(at);
    shape folded;
    for (int i = 0; i < x.extents().order; ++i)
      if (reduced.contains(i)) folded.append(x.extents()[i]);
    return element_count(x, folded);
  }
};

/// Sum; integers and bool are summed as i64.
struct sum : dims_reduction {
  static constexpr auto name = "sum";
  template <class Dims>
  static constexpr inferred infer(Dims& d, const attributes& at, const tensor_spec* operands) {
    inferred result = dims_reduction::infer(d, at, operands);
    const dtype t = operands[0].type;
    result.value.type = is_floating(t) ? t : dtype::i64;
    return result;
  }
  static constexpr auto value(const attributes& at, auto x) {
    const auto summand = is_floating(x.type()) ? x : cast_to(x, dtype::i64);
    return fold_runs(at, summand, [](auto v, int f, int l) { return sum_dims(v, f, l); });
  }
};

/// Mean; integers and bool become f32.
struct mean : dims_reduction {
  static constexpr auto name = "mean";
  static constexpr auto value(const attributes& at, auto x) {
    const auto total = sum::value(at, cast_to(x, floating(x.type())));
    return total / folded_count(at, x);
  }
};

/// x minus its mean (`near`), and the mean that rounding left in it (`rest`): `near - rest` has mean 0 even
/// where the mean of x is large compared with the deviations from it.
template <class V>
struct centred {
  V near, rest;
  V mean_square, rest_square;
  /// The biased variance: infinite where squares overflow.
  constexpr V variance() const {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    return weft::where(weft::less_equal(mean_square, rest_square),
                       weft::where(weft::less(mean_square, infinity), 0, mean_square),
                       mean_square - rest_square);
  }
};

/// `x` centred. mean_of(v) must return the mean of v along some dims and keep these dims.
template <class V>
constexpr centred<V> centre(V x, auto mean_of) {
  const V near = x - mean_of(x), rest = constant_in_derivative(mean_of(near)),
          mean_square = mean_of(near * near);
  return {near, rest, mean_square, rest * rest};
}

/// Mean square of the deviations from the mean, sum / (n - correction), where v2 is the correction; integers
/// and bool become f32.
struct variance : dims_reduction {
  static constexpr auto name = "variance";
  static constexpr auto value(const attributes& at, auto x) {
    const attributes kept = keeping_dims(at);
    const auto n = folded_count(at, x);
    const auto result =
        centre(x, [&](auto v) { return sum::value(kept, v) / n; }).variance() * (n / degrees(at, x));
    return at[1] ? result : reshape_to(result, without_dims(reduced_dims(at), x.extents()));
  }
  static constexpr auto vjp(auto g, auto y, auto x) {
    const attributes at = y.attribute_values();
    return with_dims(at, g, x) * deviations(at, x) * (2 / degrees(at, x));
  }

 protected:
  /// The number of elements minus the correction, at least 0.
  static constexpr auto degrees(const attributes& at, auto x) {
    return weft::maximum(folded_count(at, x) - static_cast<double>(at[2]), 0);
  }
  static constexpr auto deviations(const attributes& at, auto x) {
    return x - mean::value(keeping_dims(at), x);
  }
};

/// The square root of the variance; its derivative is 0 where it is 0.
struct stddev : variance {
  static constexpr auto name = "stddev";
  static constexpr auto value(const attributes& at, auto x) { return weft::sqrt(variance::value(at, x)); }
  static constexpr auto vjp(auto g, auto y, auto x) {
    const attributes at = y.attribute_values();
    const auto root = with_dims(at, y, x), zero = weft::equal(root, 0);
    const auto slope = with_dims(at, g, x) / (weft::where(zero, 1, root) * degrees(at, x));
    return deviations(at, x) * weft::where(zero, 0, slope);
  }
};

/// The compile-time error for the extremum over a dim without elements.
template <bool Holds, class... Extents>
struct extremum_law {
  static_assert(Holds, "weft: amax, amin: a dim without elements has no largest or smallest element");
};

/// Base of amax and amin; the result has the dtype of the operand. Elements equal to the result share the
/// cotangent evenly, over all reduced dims together.
struct extremum : dims_reduction {
  template <bool Holds, class... Extents>
  using law = extremum_law<Holds, Extents...>;
  template <class Dims>
  static constexpr inferred infer(Dims& d, const attributes& at, const tensor_spec* operands) {
    inferred result = dims_reduction::infer(d, at, operands);
    result.value.type = operands[0].type;
    const reduced_dims reduced(at);
    for (int i = 0; i < operands[0].extents.order; ++i)
      if (reduced.contains(i)) result.holds = result.holds && d.require_elements(operands[0].extents[i]);
    return result;
  }
  static constexpr auto vjp(auto g, auto y, auto x) {
    const attributes at = y.attribute_values();
    const auto hit = cast_to(weft::equal(x, with_dims(at, y, x)), g.type());
    return hit * (with_dims(at, g, x) / sum::value(keeping_dims(at), hit));
  }
};

/// Largest element.
struct amax : extremum {
  static constexpr auto name = "amax";
  static constexpr auto value(const attributes& at, auto x) {
    return fold_runs(at, x, [](auto v, int f, int l) { return max_dims(v, f, l); });
  }
};

/// Smallest element.
struct amin : extremum {
  static constexpr auto name = "amin";
  static constexpr auto value(const attributes& at, auto x) {
    return fold_runs(at, x, [](auto v, int f, int l) { return min_dims(v, f, l); });
  }
};

/// log(sum(exp(x))), shifted by the maximum so that exp neither overflows nor underflows for all elements.
struct logsumexp : dims_reduction {
  static constexpr auto name = "logsumexp";
  static constexpr auto value(const attributes& at, auto x) {
    const attributes kept = keeping_dims(at);
    const auto top = amax::value(kept, x);
    const auto finite = weft::where(weft::less(weft::abs(top), infinity), top, 0);
    const auto total = sum::value(kept, weft::exp(x - finite));
    const auto result = weft::log(total) + finite;
    return at[1] ? result : reshape_to(result, without_dims(reduced_dims(at), x.extents()));
  }
  /// exp(x - y): the softmax without computing exp(x), which may overflow.
  static constexpr auto vjp(auto g, auto y, auto x) {
    const attributes at = y.attribute_values();
    return with_dims(at, g, x) * weft::exp(x - with_dims(at, y, x));
  }
  static constexpr double infinity = __builtin_inf();
};

/// The Euclidean norm.
struct vector_norm : dims_reduction {
  static constexpr auto name = "vector_norm";
  static constexpr auto value(const attributes& at, auto x) {
    const auto v = cast_to(x, floating(x.type()));
    return weft::sqrt(sum::value(at, v * v));
  }
  /// x / y times the cotangent; 0 where y is 0, in further derivatives too.
  static constexpr auto vjp(auto g, auto y, auto x) {
    const attributes at = y.attribute_values();
    const auto norm = with_dims(at, y, x), zero = weft::equal(norm, 0);
    return x * weft::where(zero, 0, with_dims(at, g, x) / weft::where(zero, 1, norm));
  }
};

}  // namespace weft::op

namespace weft {

namespace detail {
template <expression X, index_t... Dims>
constexpr index_t dim_set() {
  constexpr int order = X::static_shape.order;
  static_assert(((normalized_dim(Dims, order) < order) && ...),
                "weft: reduction: a dim is out of range for this operand");
  static_assert(std::popcount((std::uint64_t{0} | ... | (std::uint64_t{1} << normalized_dim(Dims, order)))) ==
                    sizeof...(Dims),
                "weft: reduction: a dim is given twice");
  index_t set = 0;
  ((set |= index_t{1} << normalized_dim(Dims, order)), ...);
  return sizeof...(Dims) == 0 ? (index_t{1} << order) - 1 : set;
}
template <class Op, bool Keep, index_t... Dims, expression X>
constexpr auto reduce(X x) {
  return apply<Op, attr<dim_set<X, Dims...>(), Keep>>(std::move(x));
}
template <class Op, index_t Correction, bool Keep, index_t... Dims, expression X>
constexpr auto reduce_corrected(X x) {
  static_assert(Correction >= 0, "weft: variance, stddev: the correction must not be negative");
  return apply<Op, attr<dim_set<X, Dims...>(), Keep, Correction>>(std::move(x));
}
}  // namespace detail

/// Sum over `dims`, by default all, which are removed or, with `keepdim`, kept with extent 1. Floating dtypes
/// are kept (bf16 and f16 are summed in f32 and rounded once); integers and bool are summed as i64, modulo
/// 2^64. The sum of no elements is 0.
template <expression X, index_t... D>
constexpr auto sum(X x, dims_t<D...> = {}) { return detail::reduce<op::sum, false, D...>(std::move(x)); }
template <expression X, index_t... D>
constexpr auto sum(X x, dims_t<D...>, keepdim_t) { return detail::reduce<op::sum, true, D...>(std::move(x)); }
/// Mean over `dims`, by default all. Integers and bool become f32. NaN if there are no elements.
template <expression X, index_t... D>
constexpr auto mean(X x, dims_t<D...> = {}) { return detail::reduce<op::mean, false, D...>(std::move(x)); }
template <expression X, index_t... D>
constexpr auto mean(X x, dims_t<D...>, keepdim_t) {
  return detail::reduce<op::mean, true, D...>(std::move(x));
}
/// Variance over `dims`, by default all: the sum of the squared deviations from the mean, divided by the
/// number of elements minus `Correction`, as torch.var; 0 gives the biased variance, as numpy.var. Integers
/// and bool become f32. Infinite or NaN if there are not more elements than `Correction`. Accurate even where
/// the mean is large compared with the deviations. Infinite where squares overflow, in f32 even
/// those of the rounding errors of equal numbers above 1e26.
template <index_t Correction = 1, expression X, index_t... D>
constexpr auto variance(X x, dims_t<D...> = {}) {
  return detail::reduce_corrected<op::variance, Correction, false, D...>(std::move(x));
}
template <index_t Correction = 1, expression X, index_t... D>
constexpr auto variance(X x, dims_t<D...>, keepdim_t) {
  return detail::reduce_corrected<op::variance, Correction, true, D...>(std::move(x));
}
/// Standard deviation over `dims`, sqrt(variance(...)): torch.std. Its derivative is 0 where it is 0.
template <index_t Correction = 1, expression X, index_t... D>
constexpr auto stddev(X x, dims_t<D...> = {}) {
  return detail::reduce_corrected<op::stddev, Correction, false, D...>(std::move(x));
}
template <index_t Correction = 1, expression X, index_t... D>
constexpr auto stddev(X x, dims_t<D...>, keepdim_t) {
  return detail::reduce_corrected<op::stddev, Correction, true, D...>(std::move(x));
}
/// Largest element over `dims`, by default all, in the dtype of `x`; NaN if an element is NaN. Elements equal
/// to it share the cotangent evenly, as in torch.amax. A dim without elements does not compile if its extent
/// is static, and throws shape_error at evaluation if it is dynamic.
template <expression X, index_t... D>
constexpr auto amax(X x, dims_t<D...> = {}) { return detail::reduce<op::amax, false, D...>(std::move(x)); }
template <expression X, index_t... D>
constexpr auto amax(X x, dims_t<D...>, keepdim_t) {
  return detail::reduce<op::amax, true, D...>(std::move(x));
}
/// Smallest element over `dims`; otherwise as amax.
template <expression X, index_t... D>
constexpr auto amin(X x, dims_t<D...> = {}) { return detail::reduce<op::amin, false, D...>(std::move(x)); }
template <expression X, index_t... D>
constexpr auto amin(X x, dims_t<D...>, keepdim_t) {
  return detail::reduce<op::amin, true, D...>(std::move(x));
}
/// log(sum(exp(x))) over `dims`, by default all, without overflow. Integers and bool become f32. -infinity if
/// all elements are -infinity. The derivative is the softmax.
template <expression X, index_t... D>
constexpr auto logsumexp(X x, dims_t<D...> = {}) {
  return detail::reduce<op::logsumexp, false, D...>(std::move(x));
}
template <expression X, index_t... D>
constexpr auto logsumexp(X x, dims_t<D...>, keepdim_t) {
  return detail::reduce<op::logsumexp, true, D...>(std::move(x));
}

/// sqrt(sum(x * x)) over `dims`, by default all: torch.linalg.vector_norm. Integers and bool become f32; 0 if
/// there are no elements. The derivative is 0 where the norm is 0, where that of the formula would be NaN.
template <expression X, index_t... D>
constexpr auto vector_norm(X x, dims_t<D...> = {}) {
  return detail::reduce<op::vector_norm, false, D...>(std::move(x));
}
template <expression X, index_t... D>
constexpr auto vector_norm(X x, dims_t<D...>, keepdim_t) {
  return detail::reduce<op::vector_norm, true, D...>(std::move(x));
}

/// Whether any element over `dims`, by default all, is not 0, as bool; false if there are no elements.
template <expression X, index_t... D>
constexpr auto any(X x, dims_t<D...> d = {}) { return sum(detail::in_type<bool>(std::move(x)), d) != 0; }
template <expression X, index_t... D>
constexpr auto any(X x, dims_t<D...> d, keepdim_t keep) {
  return sum(detail::in_type<bool>(std::move(x)), d, keep) != 0;
}
/// Whether every element over `dims`, by default all, is not 0, as bool; true if there are no elements.
template <expression X, index_t... D>
constexpr auto all(X x, dims_t<D...> d = {}) {
  return sum(logical_not(detail::in_type<bool>(std::move(x))), d) == 0;
}
template <expression X, index_t... D>
constexpr auto all(X x, dims_t<D...> d, keepdim_t keep) {
  return sum(logical_not(detail::in_type<bool>(std::move(x))), d, keep) == 0;
}

}  // namespace weft
