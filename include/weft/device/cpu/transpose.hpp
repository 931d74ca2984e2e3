// SPDX-License-Identifier: MIT
// Transposition of square blocks of vectors in registers.
#pragma once

#include <type_traits>
#include <utility>

#include <weft/device/simd.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

namespace detail {

/// Source lanes of the upper or lower of two rows when off-diagonal blocks of side Distance are exchanged.
template <int Distance, bool Upper, int Lanes>
constexpr int exchanged_lane(int l) {
  if (Upper) return l & Distance ? Lanes + l - Distance : l;
  return l & Distance ? Lanes + l : l + Distance;
}
#if defined(__clang__)
template <int Distance, bool Upper, class V, int... L>
WEFT_INLINE V exchanged(V a, V b, std::integer_sequence<int, L...>) {
  return __builtin_shufflevector(a, b, exchanged_lane<Distance, Upper, sizeof...(L)>(L)...);
}
#else
template <class V, int Distance, bool Upper, class Lanes>
inline constexpr V exchange_mask{};
template <class V, int Distance, bool Upper, int... L>
inline constexpr V exchange_mask<V, Distance, Upper, std::integer_sequence<int, L...>> = {
    exchanged_lane<Distance, Upper, sizeof...(L)>(L)...};
template <int Distance, bool Upper, class V, class Lanes>
WEFT_INLINE V exchanged(V a, V b, Lanes) {
  using mask = simd::integers_of<V>;
  return __builtin_shuffle(a, b, exchange_mask<mask, Distance, Upper, Lanes>);
}
#endif
template <int Distance, class V>
WEFT_INLINE void exchange_blocks(V& x, V& y) {
  constexpr std::make_integer_sequence<int, simd::lane_count<V>> lanes;
  const V a = x, b = y;
  x = exchanged<Distance, true>(a, b, lanes);
  y = exchanged<Distance, false>(a, b, lanes);
}
/// One step of the transposition of a square of vectors; the distance is halved from step to step.
template <class V, int Distance, int... Pair>
WEFT_INLINE void transpose_step(V* r, std::integer_sequence<int, Pair...>) {
  // Pair enumerates the rows whose bit Distance is 0.
  (exchange_blocks<Distance>(r[Pair / Distance * 2 * Distance + Pair % Distance],
                             r[Pair / Distance * 2 * Distance + Pair % Distance + Distance]),
   ...);
}
template <class V, int Distance>
WEFT_INLINE void transpose_steps(V* r) {
  if constexpr (Distance > 0) {
    transpose_step<V, Distance>(r, std::make_integer_sequence<int, simd::lane_count<V> / 2>{});
    transpose_steps<V, Distance / 2>(r);
  }
}
template <class V>
WEFT_INLINE void transpose(V (&r)[simd::lane_count<V>]) {
  transpose_steps<V, simd::lane_count<V> / 2>(r);
}

}  // namespace detail

}  // namespace WEFT_ISA
}  // namespace weft::cpu
