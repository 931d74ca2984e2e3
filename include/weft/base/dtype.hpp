// SPDX-License-Identifier: MIT
// Element types, in memory and in computation.
//
// f32, f64, i64 and i32 are the types of computation. bf16, f16, u8 and bool are storage types: ops convert
// their values to f32 (bf16, f16) or i32 (u8, bool) to compute.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <weft/base/config.hpp>

namespace weft {

/// The element type of a tensor at run time.
enum class dtype : std::uint8_t { f64, f32, bf16, f16, i64, i32, u8, boolean };

/// The upper 16 bits of a float: 8 exponent bits, 7 fraction bits. Conversion from float rounds to nearest
/// even; NaN stays NaN.
struct bfloat16 {
  std::uint16_t bits = 0;
  bfloat16() = default;
  constexpr bfloat16(float x) {
    const auto u = std::bit_cast<std::uint32_t>(x);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = static_cast<std::uint16_t>(
        nan ? (u >> 16 | 0x40u) : (u + 0x7fffu + (u >> 16 & 1u)) >> 16);
  }
  constexpr operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

/// IEEE binary16: 5 exponent bits, 10 fraction bits. Conversion from float rounds to nearest even; magnitudes
/// from 65520 on become infinite.
struct float16 {
  std::uint16_t bits = 0;
  float16() = default;
  constexpr float16(float x) {
    const auto u = std::bit_cast<std::uint32_t>(x);
    const auto sign = static_cast<std::uint16_t>(u >> 16 & 0x8000u);
    const std::uint32_t magnitude = u & 0x7fffffffu;
    bits = static_cast<std::uint16_t>(sign | rounded(magnitude));
  }
  constexpr operator float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    const std::uint32_t rest = bits & 0x7fffu;
    if (rest > 0x7c00u)
      return std::bit_cast<float>(sign | 0x7fc00000u | (rest & 0x3ffu) << 13);  // a quiet NaN
    if (rest == 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u);
    if (rest >= 0x0400u) return std::bit_cast<float>(sign | ((rest << 13) + 0x38000000u));
    const float subnormal = static_cast<float>(rest) * 0x1p-24f;
    return sign ? -subnormal : subnormal;
  }

 private:
  static constexpr std::uint32_t rounded(std::uint32_t magnitude) {
    if (magnitude > 0x7f800000u)
      return 0x7e00u | (magnitude >> 13 & 0x1ffu);                  // a quiet NaN, as processors convert
    if (magnitude >= 0x477ff000u) return 0x7c00u;                   // rounds to infinity
    if (magnitude >= 0x38800000u) {                                 // normal
      const std::uint32_t shifted = magnitude - 0x38000000u;
      return (shifted + 0xfffu + (shifted >> 13 & 1u)) >> 13;
    }
    if (magnitude < 0x33000000u) return 0;                          // below half the smallest subnormal
    const int shift = 126 - static_cast<int>(magnitude >> 23);      // 14 to 24
    const std::uint32_t fraction = (magnitude & 0x7fffffu) | 0x800000u;
    const std::uint32_t half = 1u << (shift - 1);
    return (fraction + half - 1 + (fraction >> shift & 1u)) >> shift;
  }
};

/// Whether T is one of the eight C++ element types.
template <class T>
inline constexpr bool is_element_type =
    std::is_same_v<T, double> || std::is_same_v<T, float> || std::is_same_v<T, bfloat16> ||
    std::is_same_v<T, float16> || std::is_same_v<T, std::int64_t> ||
    std::is_same_v<T, std::int32_t> || std::is_same_v<T, std::uint8_t> || std::is_same_v<T, bool>;

/// A C++ type of tensor elements: double, float, bfloat16, float16, std::int64_t, std::int32_t, std::uint8_t
/// or bool.
template <class T>
concept element = is_element_type<T>;

/// The dtype of elements of the C++ type T.
template <element T>
inline constexpr dtype dtype_of = [] {
  if constexpr (std::is_same_v<T, double>) return dtype::f64;
  else if constexpr (std::is_same_v<T, float>) return dtype::f32;
  else if constexpr (std::is_same_v<T, bfloat16>) return dtype::bf16;
  else if constexpr (std::is_same_v<T, float16>) return dtype::f16;
  else if constexpr (std::is_same_v<T, std::int64_t>) return dtype::i64;
  else if constexpr (std::is_same_v<T, std::int32_t>) return dtype::i32;
  else if constexpr (std::is_same_v<T, std::uint8_t>) return dtype::u8;
  else return dtype::boolean;
}();

namespace detail {
template <dtype D>
constexpr auto element_zero() {
  if constexpr (D == dtype::f64) return double{};
  else if constexpr (D == dtype::f32) return float{};
  else if constexpr (D == dtype::bf16) return bfloat16{};
  else if constexpr (D == dtype::f16) return float16{};
  else if constexpr (D == dtype::i64) return std::int64_t{};
  else if constexpr (D == dtype::i32) return std::int32_t{};
  else if constexpr (D == dtype::u8) return std::uint8_t{};
  else return bool{};
}
}  // namespace detail

/// The C++ type of elements of a dtype.
template <dtype D>
using element_of = decltype(detail::element_zero<D>());

/// Bytes of one element.
constexpr index_t size_of(dtype t) {
  switch (t) {
    case dtype::f64: case dtype::i64: return 8;
    case dtype::f32: case dtype::i32: return 4;
    case dtype::bf16: case dtype::f16: return 2;
    default: return 1;
  }
}

/// Whether `t` is f64, f32, bf16 or f16.
constexpr bool is_floating(dtype t) { return t <= dtype::f16; }

/// Whether `t` is bf16 or f16, which ops widen to f32.
constexpr bool is_narrow(dtype t) { return t == dtype::bf16 || t == dtype::f16; }

/// The type in which ops compute with operands of type `t`; it represents all values of `t`.
constexpr dtype compute_type(dtype t) {
  if (is_narrow(t)) return dtype::f32;
  return t == dtype::u8 || t == dtype::boolean ? dtype::i32 : t;
}

/// Short name, such as "f32" or "bool".
constexpr const char* name_of(dtype t) {
  constexpr const char* names[] = {"f64", "f32", "bf16", "f16", "i64", "i32", "u8", "bool"};
  return names[static_cast<int>(t)];
}

/// Calls `f` with a value of the C++ type of `t`: dispatch from a run-time dtype to a type.
template <class F>
constexpr decltype(auto) visit_type(dtype t, F&& f) {
  switch (t) {
    case dtype::f64: return f(double{});
    case dtype::f32: return f(float{});
    case dtype::bf16: return f(bfloat16{});
    case dtype::f16: return f(float16{});
    case dtype::i64: return f(std::int64_t{});
    case dtype::i32: return f(std::int32_t{});
    case dtype::u8: return f(std::uint8_t{});
    default: return f(bool{});
  }
}

/// `x` converted to type T, as the op `cast` computes it. To bf16 and f16: rounded to nearest even, from f64
/// through f32. Floating to integer: truncated; NaN becomes 0, and values out of range become the nearest
/// integer of T. Between integers: modulo 2^bits. To bool: whether it is not 0.
template <element T, class From>
constexpr T converted(From x) {
  if constexpr (std::is_same_v<From, bfloat16> || std::is_same_v<From, float16>) {
    return converted<T>(static_cast<float>(x));
  } else if constexpr (std::is_same_v<T, bool>) {
    return x != From{};
  } else if constexpr (std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>) {
    return T(static_cast<float>(x));
  } else if constexpr (std::is_integral_v<T> && std::is_floating_point_v<From>) {
    using limits = std::numeric_limits<T>;
    constexpr From end = static_cast<From>(limits::max() / 2 + 1) * 2;  // exact, unlike the largest T
    if (!(x < end)) return x == x ? limits::max() : T{};
    return x <= static_cast<From>(limits::min()) ? limits::min() : static_cast<T>(x);
  } else {
    return static_cast<T>(x);
  }
}

/// A number for elements of any type: the bits of a double for floating types, an integer for the others, so
/// that both are exact.
struct any_number {
  std::int64_t bits = 0;

  friend constexpr bool operator==(any_number a, any_number b) { return a.bits == b.bits; }

  template <element T>
  static constexpr any_number of(T x) {
    if constexpr (is_floating(dtype_of<T>)) return {std::bit_cast<std::int64_t>(static_cast<double>(x))};
    else return {static_cast<std::int64_t>(x)};
  }
  /// The number x as an element of type `t`; for f32 it is not yet rounded.
  template <class Number>
  static constexpr any_number of(dtype t, Number x) {
    if (t == dtype::f32 || t == dtype::f64) return of(static_cast<double>(x));
    return visit_type(t, [x]<class T>(T) { return of(converted<T>(x)); });
  }
  /// The number in a register of type R; R must be floating if the number is.
  template <class R>
  constexpr R as() const {
    if constexpr (std::is_floating_point_v<R>) return static_cast<R>(std::bit_cast<double>(bits));
    else return static_cast<R>(bits);
  }
};

/// The dtype of a number of the C++ type `Number` when it is combined with a tensor of dtype `t`: `t`, unless
/// the number is of a higher category (bool, integer, floating); then i64 or f32. PyTorch's rule for Python
/// scalars.
template <class Number>
constexpr dtype number_beside(dtype t) {
  if (is_floating(t)) return t;
  if (!std::is_integral_v<Number>) return dtype::f32;
  return t == dtype::boolean && !std::is_same_v<Number, bool> ? dtype::i64 : t;
}

/// The common dtype of operands `a` and `b`: PyTorch's promotion of tensors. Floating takes precedence over
/// integer, and integer over bool; within a category, the wider type. bf16 with f16 gives f32.
constexpr dtype promoted(dtype a, dtype b) {
  if (a == b) return a;
  if (is_floating(a) && is_floating(b)) {
    if (a == dtype::f64 || b == dtype::f64) return dtype::f64;
    return dtype::f32;
  }
  if (is_floating(a)) return a;
  if (is_floating(b)) return b;
  return a < b ? a : b;  // integers: the wider one is listed first
}

}  // namespace weft
