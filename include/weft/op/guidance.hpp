// SPDX-License-Identifier: MIT
// Overloads for PyTorch spellings that weft does not support: each is a compile-time error that says what to
// write instead.
//
//   sum(x, 0)      // error: weft: dims are template arguments: sum(x, dims<0>), ...
#pragma once

#include <concepts>
#include <initializer_list>

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
template <expression X, class... Rest>
constexpr void variance(X, detail::numbers_at_run_time, Rest...) {
  static_assert(detail::unsupported<X>,
                "weft: dims are template arguments: variance(x, dims<0>), variance(x, dims<0>, keepdim)");
}
template <expression X, class... Rest>
constexpr void stddev(X, detail::numbers_at_run_time, Rest...) {
  static_assert(detail::unsupported<X>,
                "weft: dims are template arguments: stddev(x, dims<0>), stddev(x, dims<0>, keepdim)");
}
template <expression X, class... Rest>
constexpr void vector_norm(X, detail::numbers_at_run_time, Rest...) {
  static_assert(detail::unsupported<X>,
                "weft: vector_norm is the 2-norm, and dims are template arguments: vector_norm(x), "
                "vector_norm(x, dims<0>), vector_norm(x, dims<0>, keepdim)");
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

template <expression X, class... Rest>
constexpr void normalize(X, detail::numbers_at_run_time, Rest...) {
  static_assert(detail::unsupported<X>, "weft: the dim is a template argument: normalize<0>(x)");
}
template <expression A, expression B, std::integral N, class... Rest>
constexpr void cosine_similarity(A, B, N, Rest...) {
  static_assert(detail::unsupported<A>, "weft: the dim is a template argument: cosine_similarity<1>(a, b)");
}

/// Compile-time errors: PyTorch's other names.
template <expression X, class... Rest>
constexpr void max(X, Rest...) {
  static_assert(detail::unsupported<X>,
                "weft: for the largest element, write amax(x) or amax(x, dims<1>); for the larger of two, "
                "maximum(a, b)");
}
template <expression X, class... Rest>
constexpr void min(X, Rest...) {
  static_assert(detail::unsupported<X>,
                "weft: for the smallest element, write amin(x) or amin(x, dims<1>); for the smaller of two, "
                "minimum(a, b)");
}
template <operand X, operand B>
  requires operands<X, B>
constexpr void clamp(X, B) {
  static_assert(
      detail::unsupported<X>,
      "weft: clamp: an argument is missing: clamp(x, low, high); for one bound, clamp_min(x, low) or "
      "clamp_max(x, high)");
}
template <expression X>
constexpr void dropout(X) {
  static_assert(detail::unsupported<X>, "weft: dropout: the rate is missing: dropout(x, 0.1f)");
}
template <expression Q, expression K, expression V, class... Rest>
constexpr void attention(Q, K, V, Rest...) {
  static_assert(
      detail::unsupported<Q>,
      "weft: attention: a template argument says whether queries see later keys: attention<causal>(q, "
      "k, v), attention<!causal>(q, k, v)");
}

/// The same for the dims and extents of functions that change shapes.
template <expression A, class... Rest>
constexpr void concat(A, Rest...) {
  static_assert(detail::unsupported<A>, "weft: concat: the dim is a template argument: concat<0>(a, b)");
}
template <expression A, class... Rest>
constexpr void stack(A, Rest...) {
  static_assert(detail::unsupported<A>, "weft: stack: the dim is a template argument: stack<0>(a, b)");
}
template <expression X>
constexpr void reshape(X, std::initializer_list<index_t>) {
  static_assert(detail::unsupported<X>,
                "weft: reshape: extents are template arguments: reshape<2, dyn>(x), "
                "or reshape(x, extents<dyn, 3>{n})");
}
template <expression X>
constexpr void permute(X, std::initializer_list<index_t>) {
  static_assert(detail::unsupported<X>, "weft: permute: dims are template arguments: permute<2, 0, 1>(x)");
}
template <expression X, std::integral... N>
requires(sizeof...(N) > 0) constexpr void reshape(X, N...) {
  static_assert(detail::unsupported<X>,
                "weft: reshape: extents are template arguments: reshape<2, dyn>(x), "
                "or reshape(x, extents<dyn, 3>{n})");
}
template <expression X, std::integral... N>
  requires(sizeof...(N) > 0)
constexpr void expand(X, N...) {
  static_assert(detail::unsupported<X>,
                "weft: expand: extents are template arguments: expand<2, 3>(x), or expand(x, extents<dyn, "
                "3>{n})");
}
template <expression X, std::integral... N>
  requires(sizeof...(N) > 0)
constexpr void transpose(X, N...) {
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

/// Compile-time errors: the dims, sizes and windows of other functions.
template <expression X, std::integral... N>
constexpr void flatten(X, N...) {
  static_assert(detail::unsupported<X>, "weft: flatten: dims are template arguments: flatten<1, 2>(x)");
}
template <expression X, std::integral... N>
constexpr void squeeze(X, N...) {
  static_assert(detail::unsupported<X>, "weft: squeeze: the dim is a template argument: squeeze<1>(x)");
}
template <expression X, std::integral... N>
constexpr void flip(X, N...) {
  static_assert(detail::unsupported<X>, "weft: flip: the dim is a template argument: flip<0>(x)");
}
template <expression X, std::integral... N>
  requires(sizeof...(N) > 1)
constexpr void select(X, N...) {
  static_assert(detail::unsupported<X>, "weft: select: the dim is a template argument: select<1>(x, i)");
}
template <expression X, std::integral... N>
constexpr void chunk(X, N...) {
  static_assert(detail::unsupported<X>,
                "weft: chunk: dim, parts and number are template arguments: chunk<-1, 3, 0>(x)");
}
template <expression X, std::integral... N>
constexpr void cumsum(X, N...) {
  static_assert(detail::unsupported<X>, "weft: cumsum: the dim is a template argument: cumsum<1>(x)");
}
template <expression X, std::integral... N>
constexpr void cumprod(X, N...) {
  static_assert(detail::unsupported<X>, "weft: cumprod: the dim is a template argument: cumprod<1>(x)");
}
template <expression X, class... Rest>
  requires(sizeof...(Rest) > 0)
constexpr void sort(X, Rest...) {
  static_assert(detail::unsupported<X>,
                "weft: sort: the dim is a template argument: sort<0>(x), descending: sort<0, true>(x)");
}
template <expression X, class... Rest>
  requires(sizeof...(Rest) > 0)
constexpr void argsort(X, Rest...) {
  static_assert(detail::unsupported<X>, "weft: argsort: the dim is a template argument: argsort<0>(x)");
}
template <expression X, class... Rest>
constexpr void topk(X, Rest...) {
  static_assert(detail::unsupported<X>, "weft: topk: the dim is a template argument: topk<-1>(x, k)");
}
template <expression X, std::integral N, expression I>
constexpr void gather(X, N, I) {
  static_assert(detail::unsupported<X>, "weft: gather: the dim is a template argument: gather<1>(x, index)");
}
template <expression X, std::integral N, expression I>
constexpr void index_select(X, N, I) {
  static_assert(detail::unsupported<X>,
                "weft: index_select: the dim is a template argument: index_select<0>(x, index)");
}
template <expression X, std::integral... N>
constexpr void one_hot(X, N...) {
  static_assert(detail::unsupported<X>,
                "weft: one_hot: the number of classes is a template argument: one_hot<10>(labels)");
}
template <expression X, expression W, class... Rest>
  requires(sizeof...(Rest) > 0 && !(expression<Rest> && ...))
constexpr void conv2d(X, W, Rest...) {
  static_assert(detail::unsupported<X>,
                "weft: conv2d: options are template arguments: conv2d<conv_options{.stride = 2, .padding = "
                "1}>(x, weight)");
}
template <expression X, expression W, class... Rest>
  requires(sizeof...(Rest) > 0 && !(expression<Rest> && ...))
constexpr void conv_transpose2d(X, W, Rest...) {
  static_assert(detail::unsupported<X>,
                "weft: conv_transpose2d: options are template arguments: "
                "conv_transpose2d<conv_transpose_options{.stride = 2}>(x, weight)");
}
template <expression X, class... Rest>
  requires(sizeof...(Rest) > 0)
constexpr void max_pool2d(X, Rest...) {
  static_assert(detail::unsupported<X>,
                "weft: max_pool2d: the window is a template argument: max_pool2d<2>(x)");
}
template <expression X, class... Rest>
  requires(sizeof...(Rest) > 0)
constexpr void avg_pool2d(X, Rest...) {
  static_assert(detail::unsupported<X>,
                "weft: avg_pool2d: the window is a template argument: avg_pool2d<2>(x)");
}
template <expression X, class... Rest>
  requires(sizeof...(Rest) > 0)
constexpr void upsample_nearest(X, Rest...) {
  static_assert(detail::unsupported<X>,
                "weft: upsample_nearest: the factor is a template argument: upsample_nearest<2>(x)");
}
template <expression X, class... Rest>
  requires(sizeof...(Rest) > 0)
constexpr void upsample_bilinear(X, Rest...) {
  static_assert(detail::unsupported<X>,
                "weft: upsample_bilinear: the factor is a template argument: upsample_bilinear<2>(x)");
}

/// Compile-time errors: expressions are immutable; only `update` changes elements in place.
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
