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

/// A block that stays in the nearest cache while all ranks' elements are added to it.
inline constexpr index_t reduction_block = 1024;

/// Reduces elements [begin, begin + n) of all sources, n at most a block, into `out`. `partial` has a
/// block for each power of two up to the number of sources, and one more.
template <class T, class A>
void reduce_block(const std::vector<const void*>& sources, index_t begin, index_t n, reduction op, T* out, std::vector<A>& partial) {
  const auto level = [&](std::size_t k) { return partial.data() + k * reduction_block; };
  const auto load = [&](std::size_t r, A* to) {
    const T* from = static_cast<const T*>(sources[r]) + begin;
    for (index_t i = 0; i < n; ++i) to[i] = static_cast<A>(from[i]);
  };
  for (std::size_t r = 0; r < sources.size(); ++r) {
    std::size_t free = 0;  // the level that the counter reaches with this source
    while (r >> free & 1) ++free;
    A* const current = level(free);  // not in use: its bit is 0
    if (free == 0) {
      load(r, current);
      continue;
    }
    A* const added = partial.data() + partial.size() - reduction_block;
    load(r, added);
    for (std::size_t k = 0; k < free; ++k) {
      combine(level(k), added, n, op);
      std::copy_n(level(k), n, k + 1 == free ? current : added);
    }
  }
  const A* result = nullptr;
  for (std::size_t k = 0; sources.size() >> k; ++k) {
    if (!(sources.size() >> k & 1)) continue;
    if (result) combine(level(k), result, n, op);
    result = level(k);
  }
  const auto ranks = static_cast<double>(sources.size());
  for (index_t i = 0; i < n; ++i) {
    if constexpr (std::is_floating_point_v<A>) out[i] = static_cast<T>(op == reduction::average ? static_cast<A>(result[i] / ranks) : result[i]);
    else out[i] = static_cast<T>(result[i]);
  }
}

/// Reduces elements [begin, begin + n) of all sources into `out` [n].
template <class T>
void reduce_ranks(const std::vector<const void*>& sources, index_t begin, index_t n, reduction op, T* out) {
  using A = accumulator_of<T>;
  std::size_t levels = 2;  // one for the sum under way
  while (sources.size() >> levels) ++levels;
  std::vector<A> partial(static_cast<std::size_t>(reduction_block) * (levels + 1));
  for (index_t i = 0; i < n; i += reduction_block)
    reduce_block(sources, begin + i, std::min(reduction_block, n - i), op, out + i, partial);
}

}  // namespace weft::detail
