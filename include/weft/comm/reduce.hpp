// SPDX-License-Identifier: MIT
// Reduction of the elements of several ranks, in an order that depends only on the number of ranks.
//
// Ranks are added as a tree whose left side is a power of two: ((0 1) (2 3)) ((4 5) 6). Micro-batches
// accumulated in the same order, that of a binary counter, give bitwise the same result. bf16 and f16 are
// added in f32 and rounded once.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

#include <weft/base/recycled.hpp>
#include <weft/comm/operation.hpp>

namespace weft::detail {

/// The type in which elements of type T are reduced; bool, which has minimum and maximum only, as bytes.
template <class T>
using accumulator_of = std::conditional_t<std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>, float,
                                          std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>>;

/// The type in which sums and products are computed: integers overflow modulo 2^bits.
template <class A, bool = std::is_integral_v<A>>
struct wrapping {
  using type = A;
};
template <class A>
struct wrapping<A, true> {
  using type = std::make_unsigned_t<A>;
};

/// Calls f(g) with the function g(a, b) that combines two elements.
template <class A, class F>
void visit_reduction(reduction op, F f) {
  const auto is_nan = [](A x) {
    if constexpr (std::is_floating_point_v<A>) return std::isnan(x);
    else return false;
  };
  using W = typename wrapping<A>::type;
  switch (op) {
    case reduction::sum:
    case reduction::average: return f([](A a, A b) { return static_cast<A>(W(a) + W(b)); });
    case reduction::product: return f([](A a, A b) { return static_cast<A>(W(a) * W(b)); });
    case reduction::minimum: return f([=](A a, A b) { return b < a || is_nan(b) ? b : a; });  // a NaN wins
    case reduction::maximum: return f([=](A a, A b) { return a < b || is_nan(b) ? b : a; });
  }
}

template <class A, class T>
void combine(const T* a, const T* b, index_t n, reduction op, A* out) {
  visit_reduction<A>(op, [&](auto combined) {
    for (index_t i = 0; i < n; ++i) out[i] = combined(static_cast<A>(a[i]), static_cast<A>(b[i]));
  });
}

/// Elements per block, which stays in the first-level cache while the elements of all ranks are added.
inline constexpr index_t reduction_block = 1024;

/// Reduces elements begin to begin + n - 1 of all sources, of which there are at least two, into `out` [n];
/// `scratch` has n elements for each level of the tree.
template <class T, class A>
void reduce_tree(std::span<const void* const> sources, index_t begin, index_t n, reduction op, A* out,
                 A* scratch) {
  const auto elements_of = [&](std::size_t r) { return static_cast<const T*>(sources[r]) + begin; };
  if (sources.size() == 2) return combine(elements_of(0), elements_of(1), n, op, out);
  const std::size_t left = std::bit_floor(sources.size() - 1);
  reduce_tree<T>(sources.first(left), begin, n, op, out, scratch);
  if (sources.size() == left + 1)
    std::transform(elements_of(left), elements_of(left) + n, scratch, [](T x) { return static_cast<A>(x); });
  else reduce_tree<T>(sources.subspan(left), begin, n, op, scratch, scratch + n);
  combine<A, A>(out, scratch, n, op, out);
}

/// Reduces elements begin to begin + n - 1 of all sources blockwise: calls to(i, block, m) with elements
/// begin + i to begin + i + m - 1 for each block.
template <class T, class F>
void reduce_ranks(std::span<const void* const> sources, index_t begin, index_t n, reduction op, F to) {
  using A = accumulator_of<T>;
  if (sources.size() == 1) return to(index_t{0}, static_cast<const T*>(sources[0]) + begin, n);
  const index_t size = std::min(n, reduction_block);
  recycled_vector<A> partial(static_cast<std::size_t>(size) *
                             static_cast<std::size_t>(std::bit_width(sources.size())));
  const auto ranks = static_cast<double>(sources.size());
  for (index_t i = 0; i < n; i += size) {
    const index_t m = std::min(size, n - i);
    A* const result = partial.data();
    reduce_tree<T>(sources, begin + i, m, op, result, result + m);
    if constexpr (std::is_floating_point_v<A>)
      if (op == reduction::average)
        std::transform(result, result + m, result, [=](A x) { return static_cast<A>(x / ranks); });
    if constexpr (std::is_same_v<T, A>) {
      to(i, result, m);
    } else {
      T rounded[reduction_block];
      std::transform(result, result + m, rounded, [](A x) { return static_cast<T>(x); });
      to(i, rounded, m);
    }
  }
}

/// The same into `out` [n], which must not overlap the sources.
template <class T>
void reduce_ranks(std::span<const void* const> sources, index_t begin, index_t n, reduction op, T* out) {
  reduce_ranks<T>(sources, begin, n, op,
                  [&](index_t i, const T* block, index_t m) { std::copy_n(block, m, out + i); });
}

}  // namespace weft::detail
