// SPDX-License-Identifier: MIT
// Vectors of lanes, based on the compilers' vector extension; a scalar type is a vector of one lane.
//
// The same kernel code runs with V = float (the row part of row kernels) and with V = vec<float, 16>.
// Comparisons return masks: 32-bit lanes of all ones or all zeros, whatever type is compared.
//
//   vec<float, 8> y = select(less(x, splat<vec<float, 8>>(0.f)), -x, x);
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include <weft/base/config.hpp>

#pragma GCC diagnostic ignored "-Wpsabi"  // wide vectors never cross a call that is not inlined

#define WEFT_INLINE inline __attribute__((always_inline))

namespace weft::simd {
inline namespace WEFT_ISA {

namespace detail {
template <class T, int N>
struct vector_of {
  typedef T type __attribute__((vector_size(N * sizeof(T))));
};
template <class T>
struct vector_of<T, 1> {
  using type = T;
};

template <class V>
struct lanes_of {  // a lane type alone
  using element = V;
  static constexpr int count = 1;
};
template <class V>
  requires requires(V v) { v[0]; }
struct lanes_of<V> {
  using element = std::remove_cvref_t<decltype(std::declval<V>()[0])>;
  static constexpr int count = sizeof(V) / sizeof(element);
};
}  // namespace detail

/// A vector of N lanes of type T.
template <class T, int N>
using vec = typename detail::vector_of<T, N>::type;

/// The type of a lane of V.
template <class V>
using lane = typename detail::lanes_of<V>::element;

/// Number of lanes of V.
template <class V>
inline constexpr int lane_count = detail::lanes_of<V>::count;

/// A vector with the lane type T and the number of lanes of V.
template <class V, class T>
using rebind = vec<T, lane_count<V>>;

/// The mask type of V: 32-bit lanes, all ones for true.
template <class V>
using mask_of = rebind<V, std::int32_t>;

/// Integers of the width of the lanes of V, of 4 or 8 bytes.
template <class V>
using integers_of = rebind<V, std::conditional_t<sizeof(lane<V>) == 8, std::int64_t, std::int32_t>>;

/// x in every lane.
template <class V>
WEFT_INLINE V splat(lane<V> x) {
  return x - V{};  // exact, the sign of zero included
}

namespace detail {
template <class V, class Lanes>
inline constexpr V counted{};
template <class V, int... I>
inline constexpr V counted<V, std::integer_sequence<int, I...>> = {static_cast<lane<V>>(I)...};
}  // namespace detail

/// 0, 1, 2, ... in the lanes.
template <class V>
WEFT_INLINE V iota() {
  if constexpr (lane_count<V> == 1) return V{};
  else return detail::counted<V, std::make_integer_sequence<int, lane_count<V>>>;
}

/// Loads a vector from contiguous memory without alignment.
template <class V>
WEFT_INLINE V load(const lane<V>* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
/// Stores a vector to contiguous memory without alignment.
template <class V>
WEFT_INLINE void store(lane<V>* p, const V& v) {  // by reference: V may be wider than a register
  std::memcpy(p, &v, sizeof v);
}

namespace detail {
/// Loads and stores the first `n` lanes, fewer than all; other memory is not accessed, and other lanes are
/// loaded as zero. Written in inline assembly, because the compilers' functions for masks differ and their
/// header is slow to compile.
template <class V>
struct partial {
  using T = lane<V>;
  static constexpr bool by_mask = false;
  static WEFT_INLINE V load(const T* p, index_t n) {
    T some[lane_count<V>]{};
    for (index_t i = 0; i < n; ++i) some[i] = p[i];
    return simd::load<V>(some);
  }
  static WEFT_INLINE void store(T* p, const V& v, index_t n) {
    T some[lane_count<V>];
    simd::store(some, v);
    for (index_t i = 0; i < n; ++i) p[i] = some[i];
  }
};

#if defined(__AVX512BW__) && defined(__AVX512VL__)
template <class V>
  requires(sizeof(V) == 16 || sizeof(V) == 32 || sizeof(V) == 64)
struct partial<V> {
  using T = lane<V>;
  using memory = char[sizeof(V)];
  static constexpr bool by_mask = true;
  static WEFT_INLINE V load(const T* p, index_t n) {
    V v;
    const auto& from = *reinterpret_cast<const memory*>(p);
    const std::uint64_t mask = (std::uint64_t{1} << n) - 1;
    if constexpr (sizeof(T) == 8) asm("vmovdqu64 %1, %0%{%2%}%{z%}" : "=v"(v) : "m"(from), "Yk"(mask));
    else if constexpr (sizeof(T) == 4) asm("vmovdqu32 %1, %0%{%2%}%{z%}" : "=v"(v) : "m"(from), "Yk"(mask));
    else if constexpr (sizeof(T) == 2) asm("vmovdqu16 %1, %0%{%2%}%{z%}" : "=v"(v) : "m"(from), "Yk"(mask));
    else asm("vmovdqu8 %1, %0%{%2%}%{z%}" : "=v"(v) : "m"(from), "Yk"(mask));
    return v;
  }
  static WEFT_INLINE void store(T* p, V v, index_t n) {
    auto& to = *reinterpret_cast<memory*>(p);
    const std::uint64_t mask = (std::uint64_t{1} << n) - 1;
    if constexpr (sizeof(T) == 8) asm("vmovdqu64 %1, %0%{%2%}" : "+m"(to) : "v"(v), "Yk"(mask));
    else if constexpr (sizeof(T) == 4) asm("vmovdqu32 %1, %0%{%2%}" : "+m"(to) : "v"(v), "Yk"(mask));
    else if constexpr (sizeof(T) == 2) asm("vmovdqu16 %1, %0%{%2%}" : "+m"(to) : "v"(v), "Yk"(mask));
    else asm("vmovdqu8 %1, %0%{%2%}" : "+m"(to) : "v"(v), "Yk"(mask));
  }
};
#elif defined(__AVX2__)
template <class V>
  requires((sizeof(V) == 16 || sizeof(V) == 32) && sizeof(lane<V>) >= 4)
struct partial<V> {
  using T = lane<V>;
  using I = integers_of<V>;
  using memory = char[sizeof(V)];
  static constexpr bool by_mask = true;
  static WEFT_INLINE V load(const T* p, index_t n) {
    V v;
    const auto& from = *reinterpret_cast<const memory*>(p);
    const I mask = iota<I>() < static_cast<lane<I>>(n);
    if constexpr (sizeof(T) == 8) asm("vpmaskmovq %1, %2, %0" : "=x"(v) : "m"(from), "x"(mask));
    else asm("vpmaskmovd %1, %2, %0" : "=x"(v) : "m"(from), "x"(mask));
    return v;
  }
  static WEFT_INLINE void store(T* p, V v, index_t n) {
    auto& to = *reinterpret_cast<memory*>(p);
    const I mask = iota<I>() < static_cast<lane<I>>(n);
    if constexpr (sizeof(T) == 8) asm("vpmaskmovq %1, %2, %0" : "+m"(to) : "x"(v), "x"(mask));
    else asm("vpmaskmovd %1, %2, %0" : "+m"(to) : "x"(v), "x"(mask));
  }
};
#endif
}  // namespace detail

/// Loads the first `n` lanes; the others are zero.
template <class V>
WEFT_INLINE V load_some(const lane<V>* p, index_t n) {
  return n >= lane_count<V> ? load<V>(p) : detail::partial<V>::load(p, n);
}
/// Stores the first `n` lanes.
template <class V>
WEFT_INLINE void store_some(lane<V>* p, const V& v, index_t n) {
  if (n >= lane_count<V>) store(p, v);
  else detail::partial<V>::store(p, v, n);
}

#if defined(__clang__)
namespace detail {
template <class V, int... I>
WEFT_INLINE V reversed(V v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, v, (static_cast<int>(sizeof...(I)) - 1 - I)...);
}
}  // namespace detail
#endif

/// The lanes in reverse order.
template <class V>
WEFT_INLINE V reversed(V v) {
#if defined(__clang__)
  return detail::reversed(v, std::make_integer_sequence<int, lane_count<V>>{});
#else
  return __builtin_shuffle(v, lane_count<V> - 1 - iota<integers_of<V>>());
#endif
}

/// Converts the lanes to type To.
template <class To, class V>
WEFT_INLINE rebind<V, To> convert(V v) {
  if constexpr (lane_count<V> == 1) return static_cast<To>(v);
  else return __builtin_convertvector(v, rebind<V, To>);
}

/// The same bits as a value of another type of equal size.
template <class To, class V>
WEFT_INLINE To bits_as(V v) {
  static_assert(sizeof(To) == sizeof(V));
  To to;
  std::memcpy(&to, &v, sizeof to);
  return to;
}

namespace detail {
template <class V, class Comparison>
WEFT_INLINE mask_of<V> as_mask(Comparison c) {
  if constexpr (lane_count<V> == 1) return c ? -1 : 0;
  else if constexpr (sizeof(lane<V>) == 4) return c;
  else return __builtin_convertvector(c, mask_of<V>);
}
}  // namespace detail

/// Whether one instruction converts a vector V of floats to integers R such that NaN and values out of range
/// become the smallest R.
#if defined(__AVX__)
template <class V, class R>
inline constexpr bool truncates_to_lowest =
    std::is_same_v<R, std::int32_t> && std::is_same_v<lane<V>, float> && lane_count<V> > 1 &&
    sizeof(V) <= vector_bytes;
template <class V>
WEFT_INLINE rebind<V, std::int32_t> truncated_or_lowest(V v) {
  rebind<V, std::int32_t> whole;
  asm("vcvttps2dq %1, %0" : "=v"(whole) : "v"(v));
  return whole;
}
#else
template <class V, class R>
inline constexpr bool truncates_to_lowest = false;
template <class V>
rebind<V, std::int32_t> truncated_or_lowest(V v);
#endif

/// Mask of a < b; false for NaN.
template <class V>
WEFT_INLINE mask_of<V> less(V a, V b) {
  return detail::as_mask<V>(a < b);
}
/// Mask of a <= b; false for NaN.
template <class V>
WEFT_INLINE mask_of<V> less_equal(V a, V b) {
  return detail::as_mask<V>(a <= b);
}
/// Mask of a == b; false for NaN.
template <class V>
WEFT_INLINE mask_of<V> equal(V a, V b) {
  return detail::as_mask<V>(a == b);
}

/// mask ? a : b per lane.
template <class V>
WEFT_INLINE V select(mask_of<V> mask, V a, V b) {
  if constexpr (lane_count<V> == 1) return mask ? a : b;
  else if constexpr (sizeof(lane<V>) == 4) return mask ? a : b;
  else return __builtin_convertvector(mask, rebind<V, std::int64_t>) ? a : b;
}

// One x86 instruction each, which compilers do not always select: b where a or b is NaN.
namespace detail {
template <class V>
inline constexpr bool is_float_register =
    std::is_same_v<lane<V>, float> && sizeof(V) >= 16 && sizeof(V) <= vector_bytes;
}  // namespace detail
/// a where a < b, otherwise b.
template <class V>
WEFT_INLINE V lesser(V a, V b) {
#if defined(__AVX__)
  if constexpr (detail::is_float_register<V>) {
    asm("vminps %2, %1, %0" : "=v"(a) : "v"(a), "v"(b));
    return a;
  }
#endif
  return a < b ? a : b;
}
/// a where a > b, otherwise b.
template <class V>
WEFT_INLINE V greater(V a, V b) {
#if defined(__AVX__)
  if constexpr (detail::is_float_register<V>) {
    asm("vmaxps %2, %1, %0" : "=v"(a) : "v"(a), "v"(b));
    return a;
  }
#endif
  return a > b ? a : b;
}

namespace detail {
template <class V>
using unsigned_of = rebind<V, std::make_unsigned_t<lane<V>>>;
}  // namespace detail

// Arithmetic per lane. Integers are computed modulo 2^bits without undefined overflow. Products are in
// device/multiply.hpp.
/// a + b per lane.
template <class V>
WEFT_INLINE V sum(V a, V b) {
  if constexpr (!std::is_integral_v<lane<V>>) return a + b;
  else return bits_as<V>(bits_as<detail::unsigned_of<V>>(a) + bits_as<detail::unsigned_of<V>>(b));
}
/// a - b per lane.
template <class V>
WEFT_INLINE V difference(V a, V b) {
  if constexpr (!std::is_integral_v<lane<V>>) return a - b;
  else return bits_as<V>(bits_as<detail::unsigned_of<V>>(a) - bits_as<detail::unsigned_of<V>>(b));
}
/// -a per lane.
template <class V>
WEFT_INLINE V negative(V a) {
  if constexpr (!std::is_integral_v<lane<V>>) return -a;
  else return difference(V{}, a);
}

/// The larger value per lane, b if they are equal; NaN if either is, as torch.maximum. A reduction passes its
/// accumulator as `b`, on which only one instruction depends.
template <class V>
WEFT_INLINE V maximum(V a, V b) {
  if constexpr (std::is_integral_v<lane<V>>) return select(less(b, a), a, b);
  else return select(detail::as_mask<V>(a != a), a, greater(a, b));
}
template <class V>
WEFT_INLINE V minimum(V a, V b) {
  if constexpr (std::is_integral_v<lane<V>>) return select(less(a, b), a, b);
  else return select(detail::as_mask<V>(a != a), a, lesser(a, b));
}

/// The first `n` lanes of v; the others are those of `rest`.
template <class V>
WEFT_INLINE V first_lanes(V v, V rest, index_t n) {
  if (n >= lane_count<V>) return v;
  return select(less(iota<mask_of<V>>(), splat<mask_of<V>>(static_cast<std::int32_t>(n))), v, rest);
}

/// Reduces the lanes with `f`, halves first; the order depends only on the width.
template <class V, class F>
WEFT_INLINE lane<V> fold_lanes(V v, F f) {
  if constexpr (lane_count<V> == 1) return v;
  else {
    vec<lane<V>, lane_count<V> / 2> half[2];
    std::memcpy(half, &v, sizeof v);
    return fold_lanes(f(half[0], half[1]), f);
  }
}

/// Whether any lane of the mask is true.
template <class M>
WEFT_INLINE bool any(M mask) {
#if defined(__AVX512F__) && defined(__AVX512VL__)
  if constexpr (lane_count<M> > 1 && sizeof(M) >= 16 && sizeof(M) <= vector_bytes) {
    bool none;
    std::uint16_t lanes;
    asm("vptestmd %2, %2, %1\n\tkortestw %1, %1" : "=@ccz"(none), "=Yk"(lanes) : "v"(mask));
    return !none;
  }
#elif defined(__AVX__)
  if constexpr (lane_count<M> > 1 && sizeof(M) >= 16 && sizeof(M) <= vector_bytes) {
    bool none;
    asm("vptest %1, %1" : "=@ccz"(none) : "x"(mask));
    return !none;
  }
#endif
  return fold_lanes(mask, [](auto a, auto b) { return a | b; }) != 0;
}

/// Applies the scalar function `f` to each lane.
template <class V, class F>
WEFT_INLINE V map_lanes(V v, F f) {
  if constexpr (lane_count<V> == 1) return static_cast<V>(f(v));
  else {
    for (int i = 0; i < lane_count<V>; ++i) v[i] = static_cast<lane<V>>(f(v[i]));
    return v;
  }
}

}  // namespace WEFT_ISA
}  // namespace weft::simd
