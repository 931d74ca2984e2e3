// SPDX-License-Identifier: MIT
// Overloads for spellings of PyTorch that weft does not have: each is a compile-time error that says what to
// write instead.
//
//   sum(x, 0)      // error: weft: dims are template arguments: sum(x, dims<0>), ...
#pragma once

#include <concepts>

#include <weft/expr/apply.hpp>

namespace weft {

/// Compile-time errors: the dims of a reduction are template arguments, sum(x, dims<0>) or argmax<0>(x).
template <expression X, class... Rest>
constexpr void sum(X, detail::numbers_at_run_time, Rest...) {
  static_assert(detail::unsupported<X>,
                "weft: dims are template arguments: sum(x, dims<0>), sum(x, dims<0, 1>, keepdim)");
}
template <expression X, class... Rest>
constexpr void mean(X, detail::numbers_at_run_time, Rest...) {
  static_assert(detail::unsupported<X>,
                "weft: dims are template arguments: mean(x, dims<0>), mean(x, dims<0, 1>, keepdim)");
}
template <expression X, class... Rest>
constexpr void amax(X, detail::numbers_at_run_time, Rest...) {
  static_assert(detail::unsupported<X>,
                "weft: dims are template arguments: amax(x, dims<0>), amax(x, dims<0, 1>, keepdim)");
}
template <expression X, class... Rest>
constexpr void amin(X, detail::numbers_at_run_time, Rest...) {
  static_assert(detail::unsupported<X>,
                "weft: dims are template arguments: amin(x, dims<0>), amin(x, dims<0, 1>, keepdim)");
}
template <expression X, class... Rest>
constexpr void any(X, detail::numbers_at_run_time, Rest...) {
  static_assert(detail::unsupported<X>,
                "weft: dims are template arguments: any(x, dims<0>), any(x, dims<0, 1>, keepdim)");
}
template <expression X, class... Rest>
constexpr void all(X, detail::numbers_at_run_time, Rest...) {
  static_assert(detail::unsupported<X>,
                "weft: dims are template arguments: all(x, dims<0>), all(x, dims<0, 1>, keepdim)");
}
template <expression X, class... Rest>
constexpr void logsumexp(X, detail::numbers_at_run_time, Rest...) {
  static_assert(detail::unsupported<X>,
                "weft: dims are template arguments: logsumexp(x, dims<0>), logsumexp(x, dims<0>, keepdim)");
}
template <expression X>
constexpr void argmax(X, detail::numbers_at_run_time) {
  static_assert(detail::unsupported<X>, "weft: the dim is a template argument: argmax<0>(x)");
}
template <expression X>
constexpr void argmin(X, detail::numbers_at_run_time) {
  static_assert(detail::unsupported<X>, "weft: the dim is a template argument: argmin<0>(x)");
}
template <expression X>
constexpr void softmax(X, detail::numbers_at_run_time) {
  static_assert(detail::unsupported<X>, "weft: the dim is a template argument: softmax<0>(x)");
}
template <expression X>
constexpr void log_softmax(X, detail::numbers_at_run_time) {
  static_assert(detail::unsupported<X>, "weft: the dim is a template argument: log_softmax<0>(x)");
}

/// Compile-time errors: other names.
template <expression X, class... Rest>
constexpr void max(X, Rest...) {
  static_assert(detail::unsupported<X>,
                "weft: the largest element is amax(x) or amax(x, dims<1>), the larger "
                "of two maximum(a, b)");
}
template <expression X, class... Rest>
constexpr void min(X, Rest...) {
  static_assert(detail::unsupported<X>,
                "weft: the smallest element is amin(x) or amin(x, dims<1>), the smaller "
                "of two minimum(a, b)");
}
template <expression Q, expression K, expression V, class... Rest>
constexpr void attention(Q, K, V, Rest...) {
  static_assert(
      detail::unsupported<Q>,
      "weft: attention: a template argument says whether queries see later keys: attention<causal>(q, "
      "k, v), attention<!causal>(q, k, v)");
}

/// The same for dims and extents of functions that change shapes.
template <expression A, expression... B>
constexpr void concat(A, B...) {
  static_assert(detail::unsupported<A>, "weft: concat: the dim is a template argument: concat<0>(a, b)");
}
template <expression A, expression... B>
constexpr void stack(A, B...) {
  static_assert(detail::unsupported<A>, "weft: stack: the dim is a template argument: stack<0>(a, b)");
}
template <expression X, std::integral... N>
requires(sizeof...(N) > 0) constexpr void reshape(X, N...) {
  static_assert(detail::unsupported<X>,
                "weft: reshape: extents are template arguments: reshape<2, dyn>(x), "
                "or reshape(x, extents<dyn, 3>{n})");
}
template <expression X, std::integral... N>
requires(sizeof...(N) > 0) constexpr void transpose(X, N...) {
  static_assert(detail::unsupported<X>, "weft: transpose: dims are template arguments: transpose<0, 1>(x)");
}
template <expression X, std::integral... N>
constexpr void permute(X, N...) {
  static_assert(detail::unsupported<X>, "weft: permute: dims are template arguments: permute<2, 0, 1>(x)");
}
template <expression X, std::integral N>
constexpr void unsqueeze(X, N) {
  static_assert(detail::unsupported<X>, "weft: unsqueeze: the dim is a template argument: unsqueeze<0>(x)");
}

/// Compile-time errors: expressions are immutable; elements are changed in place by `update` only.
template <expression A, operand B>
constexpr void operator+=(const A&, const B&) {
  static_assert(detail::unsupported<A>,
                "weft: nothing is computed in place: write auto y = a + b, or update(a, a + b)");
}
template <expression A, operand B>
constexpr void operator-=(const A&, const B&) {
  static_assert(detail::unsupported<A>,
                "weft: nothing is computed in place: write auto y = a - b, or update(a, a - b)");
}
template <expression A, operand B>
constexpr void operator*=(const A&, const B&) {
  static_assert(detail::unsupported<A>,
                "weft: nothing is computed in place: write auto y = a * b, or update(a, a * b)");
}
template <expression A, operand B>
constexpr void operator/=(const A&, const B&) {
  static_assert(detail::unsupported<A>,
                "weft: nothing is computed in place: write auto y = a / b, or update(a, a / b)");
}

}  // namespace weft
