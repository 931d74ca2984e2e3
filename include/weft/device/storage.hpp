// SPDX-License-Identifier: MIT
// Elements of storage types as vectors of floats, and back: rounded to nearest even, as the scalar
// conversions of base/dtype.hpp.
//
//   vec<float, 16> v = load_stored<vec<float, 16>>(p);     // p: const bfloat16*
//   store_rounded(p, v);
#pragma once

#include <weft/base/dtype.hpp>
#include <weft/device/simd.hpp>

namespace weft {
/// Types that memory holds and registers widen to float.
template <class T>
inline constexpr bool is_storage_type = std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>;
}  // namespace weft

namespace weft::simd {
inline namespace WEFT_ISA {

namespace detail {
template <class V>
using words_of = rebind<V, std::uint32_t>;

/// Where `mask` is all ones the bits of a, elsewhere those of b.
template <class W>
WEFT_INLINE W chosen(mask_of<W> mask, W a, W b) {
  const W m = bits_as<W>(mask);
  return (a & m) | (b & ~m);
}

template <class V>
WEFT_INLINE V widened(words_of<V> halves, bfloat16) {
  return bits_as<V>(halves << 16);
}
template <class V>
WEFT_INLINE V widened(words_of<V> halves, float16) {
  using W = words_of<V>;
  const W sign = (halves & 0x8000u) << 16, rest = halves & 0x7fffu;
  const W normal = (rest << 13) + 0x38000000u, special = (rest << 13) | 0x7f800000u;
  const W subnormal = bits_as<W>(convert<float>(rest) * 0x1p-24f);
  const auto below = [&](std::uint32_t limit) { return less(bits_as<mask_of<W>>(rest), mask_of<W>{} + static_cast<std::int32_t>(limit)); };
  return bits_as<V>(sign | chosen(below(0x0400u), subnormal, chosen(below(0x7c00u), normal, special)));
}

template <class V>
WEFT_INLINE words_of<V> rounded(V x, bfloat16) {
  using W = words_of<V>;
  const W u = bits_as<W>(x);
  return chosen(equal(x, x), (u + 0x7fffu + (u >> 16 & 1u)) >> 16, u >> 16 | 0x40u);
}
template <class V>
WEFT_INLINE words_of<V> rounded(V x, float16) {
  using W = words_of<V>;
  const W u = bits_as<W>(x), sign = u >> 16 & 0x8000u, size = u & 0x7fffffffu;
  const W shifted = size - 0x38000000u, normal = (shifted + 0xfffu + (shifted >> 13 & 1u)) >> 13;
  // The steps of floats from 0.5 on are those of subnormal halves: adding it rounds to them.
  const W subnormal = bits_as<W>(bits_as<V>(size) + 0.5f) - 0x3f000000u;
  const auto below = [&](std::uint32_t limit) { return less(bits_as<mask_of<W>>(size), mask_of<W>{} + static_cast<std::int32_t>(limit)); };
  const W finite = chosen(below(0x38800000u), subnormal, chosen(below(0x477ff000u), normal, W{} + 0x7c00u));
  return sign | chosen(below(0x7f800001u), finite, W{} + 0x7e00u);
}
}  // namespace detail

/// Floats as the nearest values of storage type T.
template <class T, class V>
WEFT_INLINE V rounded_to(V v) {
  if constexpr (lane_count<V> == 1) return static_cast<float>(T(v));
  else return detail::widened<V>(detail::rounded(v, T{}), T{});
}

/// `n` elements from contiguous memory, as many as V has lanes or fewer; zeros in the lanes after them.
template <class V, class T>
WEFT_INLINE V load_stored(const T* p, index_t n = lane_count<V>) {
  if constexpr (is_storage_type<T>)
    return detail::widened<V>(convert<std::uint32_t>(load_some<rebind<V, std::uint16_t>>(reinterpret_cast<const std::uint16_t*>(p), n)), T{});
  else return load_some<V>(p, n);
}
/// The first `n` lanes to contiguous memory.
template <class T, class V>
WEFT_INLINE void store_rounded(T* p, V v, index_t n = lane_count<V>) {
  if constexpr (is_storage_type<T>)
    store_some(reinterpret_cast<std::uint16_t*>(p), convert<std::uint16_t>(detail::rounded(v, T{})), n);
  else store_some(p, v, n);
}

}  // namespace WEFT_ISA
}  // namespace weft::simd
