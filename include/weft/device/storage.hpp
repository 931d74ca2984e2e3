// SPDX-License-Identifier: MIT
// Conversion of float vectors from and to storage types, rounded to nearest even like the scalar conversions
// of base/dtype.hpp.
//
//   vec<float, 16> v = load_stored<vec<float, 16>>(p);     // p: const bfloat16*
//   store_rounded(p, v);
#pragma once

#include <weft/base/dtype.hpp>
#include <weft/device/simd.hpp>

namespace weft {
/// Whether T is a 16-bit floating type, which registers widen to float.
template <class T>
inline constexpr bool is_storage_type = std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>;
}  // namespace weft

namespace weft::simd {
inline namespace WEFT_ISA {

namespace detail {
template <class V>
using words_of = rebind<V, std::uint32_t>;
template <class V>
using halves_of = rebind<V, std::uint16_t>;

/// Whether instructions convert between a vector V of floats and as many 16-bit values.
#if defined(__AVX512BW__) && defined(__AVX512VL__)
template <class V>
inline constexpr bool converts_halves = sizeof(V) >= 16 && sizeof(V) <= 64;
#elif defined(__AVX2__) && defined(__F16C__)
template <class V>
inline constexpr bool converts_halves = sizeof(V) == 16 || sizeof(V) == 32;
#else
template <class V>
inline constexpr bool converts_halves = false;
#endif

/// A register that holds halves_of<V>.
template <class V>
using halves_register = vec<std::uint16_t, (lane_count<V> < 8 ? 8 : lane_count<V>)>;
template <class V>
WEFT_INLINE halves_register<V> in_register(const halves_of<V>& halves) {
  halves_register<V> r{};
  std::memcpy(&r, &halves, sizeof halves);
  return r;
}

/// The bits of a where `mask` is all ones, otherwise those of b.
template <class W>
WEFT_INLINE W chosen(mask_of<W> mask, W a, W b) {
  const W m = bits_as<W>(mask);
  return (a & m) | (b & ~m);
}

/// Zero-extends 16-bit values to 32-bit lanes.
template <class V>
WEFT_INLINE words_of<V> spread(const halves_of<V>& halves) {
  if constexpr (converts_halves<V>) {  // g++ would use four instructions for a conversion
    words_of<V> words;
    asm("vpmovzxwd %1, %0" : "=v"(words) : "v"(in_register<V>(halves)));
    return words;
  } else {
    return convert<std::uint32_t>(halves);
  }
}

template <class V>
WEFT_INLINE V widened(const halves_of<V>& halves, bfloat16) {
  return bits_as<V>(spread<V>(halves) << 16);
}
template <class V>
WEFT_INLINE V widened(const halves_of<V>& halves, float16) {
  if constexpr (converts_halves<V>) {
    V v;
    asm("vcvtph2ps %1, %0" : "=v"(v) : "v"(in_register<V>(halves)));
    return v;
  } else {
    using W = words_of<V>;
    const W bits = spread<V>(halves), sign = (bits & 0x8000u) << 16, rest = bits & 0x7fffu;
    const W normal = (rest << 13) + 0x38000000u, special = (rest << 13) | 0x7f800000u;
    const W subnormal = bits_as<W>(convert<float>(rest) * 0x1p-24f);
    const auto below = [&](std::int32_t limit) {
      return less(bits_as<mask_of<W>>(rest), mask_of<W>{} + limit);
    };
    const W large = chosen(below(0x7c01), special, special | 0x400000u);  // NaN becomes quiet
    return bits_as<V>(sign | chosen(below(0x0400), subnormal, chosen(below(0x7c00), normal, large)));
  }
}

/// bf16 in the upper half of each lane; the lower half must be dropped.
template <class V>
WEFT_INLINE words_of<V> rounded_above(V x) {
  using W = words_of<V>;
  const W u = bits_as<W>(x);
  W sum = u + 0x7fffu + (u >> 16 & 1u);
#if defined(__AVX512VL__)
  if constexpr (converts_halves<V>) {
    const W quiet = W{} + 0x22u;  // both kinds of NaN: the quiet NaN of the operand
    asm("vfixupimmps $0, %2, %1, %0" : "+v"(sum) : "v"(u), "v"(quiet));
    return sum;
  }
#endif
  return chosen(equal(x, x), sum, u | 0x400000u);
}
template <class V>
WEFT_INLINE halves_of<V> rounded(V x, bfloat16) {
  return convert<std::uint16_t>(rounded_above(x) >> 16);
}
template <class V>
WEFT_INLINE halves_of<V> rounded(V x, float16) {
  if constexpr (converts_halves<V>) {
    halves_register<V> r;
    halves_of<V> halves;
    asm("vcvtps2ph $0, %1, %0" : "=v"(r) : "v"(x));  // to nearest even, whatever MXCSR says
    std::memcpy(&halves, &r, sizeof halves);
    return halves;
  } else {
    using W = words_of<V>;
    const W u = bits_as<W>(x), sign = u >> 16 & 0x8000u, size = u & 0x7fffffffu;
    const W shifted = size - 0x38000000u, normal = (shifted + 0xfffu + (shifted >> 13 & 1u)) >> 13;
    // The spacing of floats from 0.5 on is that of subnormal halves, so adding 0.5 rounds to them.
    const W subnormal = bits_as<W>(bits_as<V>(size) + 0.5f) - 0x3f000000u;
    const auto below = [&](std::int32_t limit) {
      return less(bits_as<mask_of<W>>(size), mask_of<W>{} + limit);
    };
    const W finite = chosen(below(0x38800000), subnormal, chosen(below(0x477ff000), normal, W{} + 0x7c00u));
    return convert<std::uint16_t>(sign | chosen(below(0x7f800001), finite, (size >> 13 & 0x1ffu) | 0x7e00u));
  }
}
}  // namespace detail

/// Rounds floats to storage type T.
template <class T, class V>
WEFT_INLINE V rounded_to(V v) {
  if constexpr (lane_count<V> == 1) return static_cast<float>(T(v));
  else if constexpr (std::is_same_v<T, bfloat16>) return bits_as<V>(detail::rounded_above(v) & 0xffff0000u);
  else return detail::widened<V>(detail::rounded(v, T{}), T{});
}

/// Loads `n` elements from contiguous memory, at most the number of lanes; other lanes are zero.
template <class V, class T>
WEFT_INLINE V load_stored(const T* p, index_t n = lane_count<V>) {
  if constexpr (is_storage_type<T>)
    return detail::widened<V>(load_some<detail::halves_of<V>>(reinterpret_cast<const std::uint16_t*>(p), n),
                              T{});
  else return load_some<V>(p, n);
}
/// Loads `n` bytes as integers from 0 to 255; other lanes are zero.
template <class V>
WEFT_INLINE V load_bytes(const std::uint8_t* p, index_t n = lane_count<V>) {
  const auto bytes = load_some<rebind<V, std::uint8_t>>(p, n);
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  if constexpr (lane_count<V> == 16 && sizeof(lane<V>) == 4) {  // g++ merges it with a conversion to f32
    V words;
    asm("vpmovzxbd %1, %0" : "=v"(words) : "v"(bytes));
    return words;
  }
#endif
  return convert<lane<V>>(bytes);
}
/// Stores the first `n` lanes to contiguous memory, rounded to T.
template <class T, class V>
WEFT_INLINE void store_rounded(T* p, V v, index_t n = lane_count<V>) {
  if constexpr (is_storage_type<T>)
    store_some(reinterpret_cast<std::uint16_t*>(p), detail::rounded(v, T{}), n);
  else store_some(p, v, n);
}

}  // namespace WEFT_ISA
}  // namespace weft::simd
