// SPDX-License-Identifier: MIT
// Powers on lanes: a few instructions for common exponents; otherwise logarithm and exponential in f64 for
// f32, and the C library for f64.
#pragma once

#include <cmath>
#include <limits>

#include <weft/device/math.hpp>

namespace weft::math {
inline namespace WEFT_ISA {

namespace detail {
/// Replaces x by its power y, within 2 ulp, if y is an exponent that takes a few instructions.
template <class V>
WEFT_INLINE bool small_power(V& x, lane<V> y) {
  using T = lane<V>;
  const V one = splat<V>(T(1));
  if (y == T(0.5) || y == T(-0.5)) {  // for -0 and -infinity as std::pow, not as sqrt
    const V infinity = splat<V>(std::numeric_limits<T>::infinity());
    x = select(equal(x, -infinity), infinity, math::sqrt(static_cast<V>(x + T(0))));
    if (y < 0) x = static_cast<V>(one / x);
    return true;
  }
  if (!(y >= -2 && y <= 3 && y == static_cast<T>(static_cast<int>(y)))) return false;
  if (y < 0) x = static_cast<V>(one / x);
  if (y == 0) x = one;
  else if (y == 3) x = multiply(multiply(x, x), x);
  else if (y == 2 || y == -2) x = multiply(x, x);
  return true;
}

/// 2 to the power y log2(x) for finite x > 0 and any y, in f64 with a relative error of at most 2^-32;
/// results beyond 2^200 and 2^-200 are replaced by these.
template <class D>
WEFT_INLINE D power_of_positive(D x, D y) {
  using U = rebind<D, std::uint64_t>;
  // x = m 2^e with m in [sqrt(1/2), sqrt(2)); the lowest bits of x + 2^52 count in units
  constexpr std::uint64_t one = 0x3ff0000000000000, half_root = 0x3fe6a09e667f3bcd;
  const U bits = bits_as<U>(x), biased = (bits + (one - half_root)) >> 52;
  const D m = bits_as<D>(static_cast<U>(bits - ((biased - 1023) << 52)));
  const D e = bits_as<D>(static_cast<U>(biased + 0x4330000000000000)) - (0x1p52 + 1023);
  // log2(m) = 2 / log(2) atanh(s)
  constexpr double log_terms[] = {2.8853900817779268,  0.9617966939259756, 0.5770780163555854,
                                  0.41219858311113244, 0.3205988979753252, 0.26230818925253881,
                                  0.22195308321368667, 0.1923593387851951};
  const D s = (m - 1.0) / (m + 1.0);
  const D log = multiply_add(polynomial(multiply(s, s), log_terms), s, e);
  const D bounded = greater(splat<D>(-200.0), lesser(splat<D>(200.0), multiply(y, log)));
  const D whole = (bounded + magic<D>)-magic<D>, r = bounded - whole;
  constexpr double exp_terms[] = {1,  // log(2)^k / k!
                                  0.6931471805599453,
                                  0.2402265069591007,
                                  0.05550410866482158,
                                  0.009618129107628477,
                                  0.0013333558146428443,
                                  0.00015403530393381608,
                                  1.5252733804059841e-5,
                                  1.3215486790144307e-6,
                                  1.0178086009239699e-7};
  return scaled(polynomial(r, exp_terms), whole);
}

/// x to the power y, computed in f64 and rounded once; infinities, zeros and NaN as std::pow.
template <class V>
WEFT_INLINE V f32_power(V x, V y) {
  using M = mask_of<V>;
  const V a = abs(x), one = splat<V>(1.f), infinity = splat<V>(std::numeric_limits<float>::infinity());
  V power;
  if constexpr (lane_count<V> == 1) {
    power = static_cast<float>(power_of_positive<double>(a, y));
  } else {
    constexpr int half = lane_count<V> / 2;  // as many f64 as a register holds
    float bases[std::size_t{2 * half}], exponents[std::size_t{2 * half}];
    simd::store(bases, a);
    simd::store(exponents, y);
    for (int h = 0; h < 2 * half; h += half)
      simd::store(bases + h,
                  convert<float>(power_of_positive(convert<double>(load<vec<float, half>>(bases + h)),
                                                   convert<double>(load<vec<float, half>>(exponents + h)))));
    power = load<V>(bases);
  }
  const V grown = select(less(V{}, y), infinity, V{}), shrunk = select(less(V{}, y), V{}, infinity);
  power = select(equal(a, V{}), shrunk, select(equal(a, infinity), grown, power));
  const V halves = y * 0.5f;  // exact where y may be odd
  const M is_whole = equal(round(y), y), is_odd = is_whole & ~equal(round(halves), halves);
  power = bits_as<V>(static_cast<M>(bits_as<M>(power) ^
                                    (bits_as<M>(x) & is_odd & std::numeric_limits<std::int32_t>::min())));
  power = select(less(x, V{}) & less(a, infinity) & ~is_whole, splat<V>(__builtin_nanf("")), power);
  power = select(equal(x, x) & equal(y, y), power, x + y);
  return select(equal(x, one) | equal(y, V{}) | (equal(x, -one) & equal(abs(y), infinity)), one, power);
}

/// x to the power y; types other than f32 use std::pow.
template <class V>
WEFT_INLINE V any_power(V x, V y) {
  if constexpr (is_f32<V>) x = f32_power(x, y);
  else if constexpr (lane_count<V> == 1) x = static_cast<V>(std::pow(x, y));
  else
    for (int i = 0; i < lane_count<V>; ++i)
      if (lane<V> e = x[i]; small_power(e, y[i])) x[i] = e;
      else x[i] = std::pow(x[i], y[i]);
  return x;
}

/// Lanes whose exponent small_power may handle.
template <class V>
WEFT_INLINE mask_of<V> may_be_small(V y) {
  return (equal(math::round(y), y) | equal(math::abs(y), splat<V>(0.5))) & less_equal(splat<V>(-2), y) &
         less_equal(y, splat<V>(3));
}
}  // namespace detail

/// x to the power y per lane: within 2 ulp for the integer exponents -2 to 3 and for 1/2 and -1/2; otherwise
/// within 0.51 ulp in f32, and std::pow in f64. Each lane depends only on its own operands; vectors with one
/// exponent are fast.
template <class V>
WEFT_INLINE V pow(V x, V y) {
  if constexpr (lane_count<V> == 1) {
    if (!detail::small_power(x, y)) x = detail::any_power(x, y);
  } else {
    const auto same = equal(y, splat<V>(y[0]));
    if (any(static_cast<mask_of<V>>(~same)) || !detail::small_power(x, y[0])) {
      V power = detail::any_power(x, y);
      if (const auto small = detail::may_be_small(y); __builtin_expect(any(small), 0))
        for (int i = 0; i < lane_count<V>; ++i)
          if (lane<V> e = x[i]; detail::small_power(e, y[i])) power[i] = e;
      x = power;
    }
  }
  return simd::detail::of_unknown_origin(x);  // so that compilers do not rewrite other squares as products
}

}  // namespace WEFT_ISA
}  // namespace weft::math
