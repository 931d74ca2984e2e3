// SPDX-License-Identifier: MIT
// Reducing the elements of several ranks, in an order that depends on the number of ranks alone.
//
// Ranks are added as a binary counter counts: ((0 1) (2 3)) ((4 5) 6). Accumulating micro-batches
// in the same order gives the same bits. bf16 and f16 are added in f32 and rounded once.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include <weft/comm/operation.hpp>

namespace weft::detail {

/// What elements of type T are reduced in; bool, which has minimum and maximum only, as bytes.
template <class T>
using accumulator_of = std::conditional_t<std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>, float,
                                          std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>>;

template <class A>
void combine(A* into, const A* from, index_t n, reduction op) {
  switch (op) {
    case reduction::sum: case reduction::average:
      for (index_t i = 0; i < n; ++i) into[i] = static_cast<A>(into[i] + from[i]);
      break;
    case reduction::product:
      for (index_t i = 0; i < n; ++i) into[i] = static_cast<A>(into[i] * from[i]);
      break;
    case reduction::minimum:  // a NaN wins
      for (index_t i = 0; i < n; ++i) into[i] = from[i] < into[i] || from[i] != from[i] ? from[i] : into[i];
      break;
    case reduction::maximum:
      for (index_t i = 0; i < n; ++i) into[i] = into[i] < from[i] || from[i] != from[i] ? from[i] : into[i];
  }
}

/// Reduces elements [begin, begin + n) of all sources into `out` [n].
template <class T>
void reduce_ranks(const std::vector<const void*>& sources, index_t begin, index_t n, reduction op, T* out) {
  using A = accumulator_of<T>;
  std::vector<std::vector<A>> partial;  // level k: the reduction of 2^k ranks
  std::vector<A> current(static_cast<std::size_t>(n));
  for (std::size_t r = 0; r < sources.size(); ++r) {
    const T* from = static_cast<const T*>(sources[r]) + begin;
    for (index_t i = 0; i < n; ++i) current[static_cast<std::size_t>(i)] = static_cast<A>(from[i]);
    std::size_t k = 0;
    for (; r >> k & 1; ++k) {
      combine(partial[k].data(), current.data(), n, op);
      std::swap(partial[k], current);
    }
    if (partial.size() == k) partial.emplace_back(static_cast<std::size_t>(n));
    std::swap(partial[k], current);
  }
  const std::vector<A>* result = nullptr;
  for (std::size_t k = 0; k < partial.size(); ++k) {
    if (!(sources.size() >> k & 1)) continue;
    if (result) combine(partial[k].data(), result->data(), n, op);
    result = &partial[k];
  }
  const auto ranks = static_cast<double>(sources.size());
  for (index_t i = 0; i < n; ++i) {
    const A x = (*result)[static_cast<std::size_t>(i)];
    if constexpr (std::is_floating_point_v<A>) out[i] = static_cast<T>(op == reduction::average ? static_cast<A>(x / ranks) : x);
    else out[i] = static_cast<T>(x);
  }
}

}  // namespace weft::detail
