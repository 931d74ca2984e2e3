// SPDX-License-Identifier: MIT
// Reductions: sum, mean, amax, amin, argmax, argmin, logsumexp over any dims.
//
//   sum(x)                          // all dims: a scalar
//   mean(x, dims<-1>, keepdim)      // PyTorch's x.mean(-1, keepdim=True)
//
// Users' reductions are formulas over three primitives that fold adjacent dims and keep them with
// extent 1; a kernel fuses the primitive with the element-wise work around it.
#pragma once

#include <bit>

#include <weft/op/functions.hpp>
#include <weft/op/rule.hpp>

namespace weft {

/// Dims as a template argument; negative ones count from the right.
template <index_t... Dims>
struct dims_t {};
template <index_t... Dims>
inline constexpr dims_t<Dims...> dims{};

/// Asks a reduction to keep the reduced dims with extent 1.
struct keepdim_t {};
inline constexpr keepdim_t keepdim{};

}  // namespace weft

namespace weft::op {

/// Folds dims [v0, v1) and keeps them with extent 1.
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

struct reduce_sum : reduction {
  static constexpr auto name = "reduce_sum";
  static constexpr auto vjp(auto g, auto, auto x) { return expand_to(g, x.extents()); }
};

/// Elements equal to the extremum share the cotangent evenly, as torch.amax.
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

/// Reductions over a set of dims: v0 is the set, v1 says whether they are kept.
struct dims_reduction : composed<1> {
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
  /// The result or its cotangent with the reduced dims, of extent 1.
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
  /// `fold(x, first, last)` for each run of adjacent dims, then without the dims if not kept.
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
  /// Number of elements folded into one.
  static constexpr auto folded_count(const attributes& at, auto x) {
    const reduced_dims reduced(at);
    shape folded;
    for (int i = 0; i < x.extents().order; ++i)
      if (reduced.contains(i)) folded.append(x.extents()[i]);
    return element_count(x, folded);
  }
};

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

struct mean : dims_reduction {
  static constexpr auto name = "mean";
  static constexpr auto value(const attributes& at, auto x) {
    const auto total = sum::value(at, cast_to(x, floating(x.type())));
    return total / folded_count(at, x);
  }
};

template <bool Holds, class... Extents>
struct extremum_law {
  static_assert(Holds, "weft: amax, amin: a dim without elements has no largest or smallest");
};

/// Result has the operand's own type. Elements equal to it, in all dims together, share the cotangent evenly.
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

struct amax : extremum {
  static constexpr auto name = "amax";
  static constexpr auto value(const attributes& at, auto x) {
    return fold_runs(at, x, [](auto v, int f, int l) { return max_dims(v, f, l); });
  }
};

struct amin : extremum {
  static constexpr auto name = "amin";
  static constexpr auto value(const attributes& at, auto x) {
    return fold_runs(at, x, [](auto v, int f, int l) { return min_dims(v, f, l); });
  }
};

/// log(sum(exp(x))), shifted by the maximum so that it neither overflows nor underflows.
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
  /// exp(x) / sum(exp(x)) without either of them, which may overflow.
  static constexpr auto vjp(auto g, auto y, auto x) {
    const attributes at = y.attribute_values();
    return with_dims(at, g, x) * weft::exp(x - with_dims(at, y, x));
  }
  static constexpr double infinity = __builtin_inf();
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
}  // namespace detail

template <expression X, index_t... D>
constexpr auto sum(X x, dims_t<D...> = {}) { return detail::reduce<op::sum, false, D...>(std::move(x)); }
template <expression X, index_t... D>
constexpr auto sum(X x, dims_t<D...>, keepdim_t) { return detail::reduce<op::sum, true, D...>(std::move(x)); }
template <expression X, index_t... D>
constexpr auto mean(X x, dims_t<D...> = {}) { return detail::reduce<op::mean, false, D...>(std::move(x)); }
template <expression X, index_t... D>
constexpr auto mean(X x, dims_t<D...>, keepdim_t) {
  return detail::reduce<op::mean, true, D...>(std::move(x));
}
template <expression X, index_t... D>
constexpr auto amax(X x, dims_t<D...> = {}) { return detail::reduce<op::amax, false, D...>(std::move(x)); }
template <expression X, index_t... D>
constexpr auto amax(X x, dims_t<D...>, keepdim_t) {
  return detail::reduce<op::amax, true, D...>(std::move(x));
}
template <expression X, index_t... D>
constexpr auto amin(X x, dims_t<D...> = {}) { return detail::reduce<op::amin, false, D...>(std::move(x)); }
template <expression X, index_t... D>
constexpr auto amin(X x, dims_t<D...>, keepdim_t) {
  return detail::reduce<op::amin, true, D...>(std::move(x));
}
template <expression X, index_t... D>
constexpr auto logsumexp(X x, dims_t<D...> = {}) {
  return detail::reduce<op::logsumexp, false, D...>(std::move(x));
}
template <expression X, index_t... D>
constexpr auto logsumexp(X x, dims_t<D...>, keepdim_t) {
  return detail::reduce<op::logsumexp, true, D...>(std::move(x));
}

}  // namespace weft
