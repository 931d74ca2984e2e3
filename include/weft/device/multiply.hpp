// SPDX-License-Identifier: MIT
// Products that compilers do not contract with sums, and explicit fused multiply-adds.
//
// g++ contracts `a * b + c` within a basic block but not across branches, so the bits of an expression would
// depend on the code around it. On the CPU, products that may be added to something are therefore written
// `multiply`, and fused operations `multiply_add`: the bits of an element are those of the IEEE operations as
// written, for single lanes and vectors alike and for any -ffp-contract.
//
//   y = multiply_add(slope, x, offset);  // one rounding if the instruction set has it
#pragma once

#include <weft/device/simd.hpp>

namespace weft::simd {
inline namespace WEFT_ISA {

namespace detail {
/// `x`, opaque to the optimiser.
template <class V>
WEFT_INLINE V of_unknown_origin(V x) {
#if defined(__x86_64__)
  constexpr bool is_register = lane_count<V> == 1 || (sizeof(V) >= 16 && sizeof(V) <= vector_bytes);
  if constexpr (is_register) asm("" : "+v"(x));
  else asm("" : "+m"(x));
#elif defined(__aarch64__)
  if constexpr (sizeof(V) <= vector_bytes) asm("" : "+w"(x));
  else asm("" : "+m"(x));
#else
  asm("" : "+m"(x));
#endif
  return x;
}

/// Whether the instruction set has fused multiply-add.
#if defined(__FMA__) || defined(__aarch64__)
inline constexpr bool has_fma = true;
#else
inline constexpr bool has_fma = false;
#endif

WEFT_INLINE float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
WEFT_INLINE double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }
template <class V>
  requires(lane_count<V> > 1)
WEFT_INLINE V fused(V a, V b, V c) {
#if __has_builtin(__builtin_elementwise_fma)
  return __builtin_elementwise_fma(a, b, c);
#elif defined(__FMA__)
#if defined(__AVX512F__)
  constexpr int current_rounding = 4;
#if defined(__clang__)
  constexpr unsigned short all = 0xffff;
#else
  constexpr short all = -1;
#endif
  if constexpr (std::is_same_v<V, vec<float, 16>>)
    return __builtin_ia32_vfmaddps512_mask(a, b, c, all, current_rounding);
  if constexpr (std::is_same_v<V, vec<double, 8>>)
    return __builtin_ia32_vfmaddpd512_mask(a, b, c, static_cast<unsigned char>(0xff), current_rounding);
#endif
  if constexpr (std::is_same_v<V, vec<float, 8>>) return __builtin_ia32_vfmaddps256(a, b, c);
  if constexpr (std::is_same_v<V, vec<double, 4>>) return __builtin_ia32_vfmaddpd256(a, b, c);
  if constexpr (std::is_same_v<V, vec<float, 4>>) return __builtin_ia32_vfmaddps(a, b, c);
  if constexpr (std::is_same_v<V, vec<double, 2>>) return __builtin_ia32_vfmaddpd(a, b, c);
#elif defined(__aarch64__)
  if constexpr (std::is_same_v<V, vec<float, 4>>) return __builtin_aarch64_fmav4sf(a, b, c);
  if constexpr (std::is_same_v<V, vec<float, 2>>) return __builtin_aarch64_fmav2sf(a, b, c);
  if constexpr (std::is_same_v<V, vec<double, 2>>) return __builtin_aarch64_fmav2df(a, b, c);
#endif
  for (int i = 0; i < lane_count<V>; ++i) a[i] = fused(a[i], b[i], c[i]);
  return a;
}
}  // namespace detail

/// a * b, rounded before anything is added to it; integers modulo 2^bits.
template <class V>
WEFT_INLINE V multiply(V a, V b) {
  if constexpr (std::is_floating_point_v<lane<V>>) return detail::of_unknown_origin(static_cast<V>(a * b));
  else return bits_as<V>(bits_as<detail::unsigned_of<V>>(a) * bits_as<detail::unsigned_of<V>>(b));
}
/// a * b + c, with one rounding if the instruction set supports it, otherwise with two; the same in all
/// lanes.
template <class V>
WEFT_INLINE V multiply_add(V a, V b, V c) {
  if constexpr (detail::has_fma && std::is_floating_point_v<lane<V>>) return detail::fused(a, b, c);
  else return multiply(a, b) + c;
}
/// The same with one number for all lanes.
template <class V>
  requires(lane_count<V> > 1)
WEFT_INLINE V multiply(V a, lane<V> b) {
  return multiply(a, splat<V>(b));
}
template <class V>
  requires(lane_count<V> > 1)
WEFT_INLINE V multiply_add(V a, V b, lane<V> c) {
  return multiply_add(a, b, splat<V>(c));
}
template <class V>
  requires(lane_count<V> > 1)
WEFT_INLINE V multiply_add(V a, lane<V> b, V c) {
  return multiply_add(a, splat<V>(b), c);
}
template <class V>
  requires(lane_count<V> > 1)
WEFT_INLINE V multiply_add(V a, lane<V> b, lane<V> c) {
  return multiply_add(a, splat<V>(b), splat<V>(c));
}

}  // namespace WEFT_ISA
}  // namespace weft::simd
