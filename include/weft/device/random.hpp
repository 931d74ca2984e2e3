// SPDX-License-Identifier: MIT
// Random elements in host memory: functions of an element's index, not of threads and vectors.
#pragma once

#include <algorithm>

#include <weft/base/philox.hpp>
#include <weft/device/math.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

namespace detail {

/// Number of blocks of four words that are computed in parallel lanes.
inline constexpr int philox_lanes = vector_bytes / 8;

/// words[4 i + w] is word w of philox(key, counter + i).
inline void philox_blocks(philox_key key, std::uint64_t counter, std::uint32_t (&words)[4 * philox_lanes]) {
  using V = simd::vec<std::uint64_t, philox_lanes>;
  const V counters = simd::iota<V>() + counter;
  V c[4] = {counters & 0xffffffffull, counters >> 32, V{}, V{}};
  philox_rounds(c, key);
  for (int w = 0; w < 4; ++w) {
    std::uint64_t lanes[philox_lanes];
    simd::store(lanes, c[w]);
    for (int i = 0; i < philox_lanes; ++i) words[4 * i + w] = static_cast<std::uint32_t>(lanes[i]);
  }
}

}  // namespace detail

/// Elements first to first + count - 1 of the uniform sequence of `key`: multiples of 2^-24 in [0, 1),
/// rounded to T.
template <class T>
void fill_uniform(philox_key key, index_t first, index_t count, T* to) {
  constexpr index_t block = 4 * detail::philox_lanes;
  std::uint32_t words[block];
  for (index_t at = first / block * block; at < first + count; at += block) {
    detail::philox_blocks(key, static_cast<std::uint64_t>(at / 4), words);
    const index_t begin = std::max(first, at), end = std::min(first + count, at + block);
    for (index_t i = begin; i < end; ++i) to[i - first] = static_cast<T>(unit_interval(words[i - at]));
  }
}

/// The same for the standard normal sequence, by the Box-Muller transform (1958) in f32, with two random
/// words per element.
template <class T>
void fill_normal(philox_key key, index_t first, index_t count, T* to) {
  constexpr int lanes = 2 * detail::philox_lanes;
  using V = simd::vec<float, lanes>;
  std::uint32_t words[2 * lanes];
  for (index_t at = first / lanes * lanes; at < first + count; at += lanes) {
    detail::philox_blocks(key, static_cast<std::uint64_t>(at / 2), words);
    float u[lanes], v[lanes];
    for (int i = 0; i < lanes; ++i) {
      u[i] = (static_cast<float>(words[2 * i]) + 1.0f) * 0x1p-32f;  // (0, 1]
      v[i] = unit_interval(words[2 * i + 1]);
    }
    const V normal =
        math::sqrt(math::log(simd::load<V>(u)) * -2.0f) * math::cos(simd::load<V>(v) * 6.28318530717958648f);
    simd::store(u, normal);
    for (index_t i = std::max(first, at); i < std::min(first + count, at + lanes); ++i)
      to[i - first] = static_cast<T>(u[i - at]);
  }
}

#ifdef WEFT_COMPILED
extern template void fill_uniform<float>(philox_key, index_t, index_t, float*);
extern template void fill_uniform<double>(philox_key, index_t, index_t, double*);
extern template void fill_normal<float>(philox_key, index_t, index_t, float*);
extern template void fill_normal<double>(philox_key, index_t, index_t, double*);
#endif

}  // namespace WEFT_ISA
}  // namespace weft::cpu
