// SPDX-License-Identifier: MIT
// Elementary functions on lanes: polynomials for f32 and exp of f64, otherwise the C library lane by lane.
//
// Infinities, NaN and signed zeros follow IEEE 754. The polynomials are least-squares fits on Chebyshev
// points, weighted for relative error; tests/unit/device states their errors in ulps.
#pragma once

#include <limits>

#include <weft/device/multiply.hpp>

namespace weft::math {
inline namespace WEFT_ISA {

using namespace simd;

namespace detail {
template <class V>
inline constexpr bool is_f32 = std::is_same_v<lane<V>, float>;
template <class V>
inline constexpr bool is_f64 = std::is_same_v<lane<V>, double>;

/// c[0] + c[1] x + ... by Horner's rule.
template <class V, class T, std::size_t N>
WEFT_INLINE V polynomial(V x, const T (&c)[N]) {
  V sum = splat<V>(c[N - 1]);
  for (std::size_t i = N - 1; i-- > 0;) sum = multiply_add(sum, x, c[i]);
  return sum;
}

/// 2 to the power n, if that is a normal number.
template <class V>
WEFT_INLINE V power_of_two(integers_of<V> n) {
  if constexpr (is_f32<V>) return bits_as<V>(static_cast<integers_of<V>>((n + 127) << 23));
  else return bits_as<V>(static_cast<integers_of<V>>((n + 1023) << 52));
}

/// y, which is not negative, with the sign of x.
template <class V>
WEFT_INLINE V with_sign_of(V x, V y) {
  using I = rebind<V, std::int32_t>;
  return bits_as<V>(
      static_cast<I>(bits_as<I>(y) | (bits_as<I>(x) & std::numeric_limits<std::int32_t>::min())));
}

/// exp(r) - 1 for |r| <= log(2) / 2.
template <class V>
WEFT_INLINE V expm1_reduced(V r) {
  if constexpr (is_f32<V>) {
    constexpr float c[] = {0.5000000084f,   0.1666666683f,   0.04166625154f,
                           0.008333269981f, 0.001394734357f, 0.000199155917f};
    return multiply_add(polynomial(r, c), r * r, r);
  } else {  // Taylor's, up to r^13
    constexpr double c[] = {1. / 2,       1. / 6,        1. / 24,         1. / 120,
                            1. / 720,     1. / 5040,     1. / 40320,      1. / 362880,
                            1. / 3628800, 1. / 39916800, 1. / 479001600., 1. / 6227020800.};
    return multiply_add(polynomial(r, c), r * r, r);
  }
}

/// Adding it rounds to an integer, which is then in the last bits of the sum.
template <class V>
inline constexpr lane<V> magic = is_f32<V> ? lane<V>(0x1.8p23) : lane<V>(0x1.8p52);

/// An integral value of magnitude up to 2^22 (f64: 2^51) as an integer; any integer for NaN, for which a C++
/// conversion would be undefined.
template <class V>
WEFT_INLINE integers_of<V> integer_of(V whole) {
  using I = integers_of<V>;
  return bits_as<I>(static_cast<V>(whole + magic<V>)) - bits_as<lane<I>>(magic<V>);
}

/// x = whole log(2) + r with |r| <= log(2) / 2; x must lie within +-200 (f64: +-1000).
template <class V>
WEFT_INLINE V reduce_by_log2(V x, V& whole) {
  whole = multiply_add(x, lane<V>(1.44269504088896341), magic<V>) - magic<V>;
  constexpr lane<V> high = is_f32<V> ? lane<V>(-0.693359375) : lane<V>(-6.93147180369123816490e-01);
  constexpr lane<V> low = is_f32<V> ? lane<V>(2.12194440e-4) : lane<V>(-1.90821492927058770002e-10);
  return multiply_add(whole, low, multiply_add(whole, high, x));
}

/// y in [1/2, 2] times 2 to the power `whole`, an integer in [-252, 254] (f64: [-2044, 2046]), rounded once.
template <class V>
WEFT_INLINE V scaled(V y, V whole) {
#if defined(__AVX512F__) && defined(__AVX512VL__)
  constexpr bool is_register = lane_count<V> == 1 || (sizeof(V) >= 16 && sizeof(V) <= 64);
#else
  constexpr bool is_register = false;
#endif
  if constexpr (is_register) {
    if constexpr (is_f64<V> && lane_count<V> == 1) asm("vscalefsd %1, %0, %0" : "+v"(y) : "v"(whole));
    else if constexpr (is_f64<V>) asm("vscalefpd %1, %0, %0" : "+v"(y) : "v"(whole));
    else if constexpr (lane_count<V> == 1) asm("vscalefss %1, %0, %0" : "+v"(y) : "v"(whole));
    else asm("vscalefps %1, %0, %0" : "+v"(y) : "v"(whole));
    return y;
  } else {
    using I = integers_of<V>;
    const I n = integer_of(whole);
    const I half = n >> 1;  // in two steps, so that results reach the subnormal numbers
    return multiply(static_cast<V>(y * power_of_two<V>(half)), power_of_two<V>(static_cast<I>(n - half)));
  }
}

/// exp(x) for x in [-104, 104] (f64: [-746, 710]) and for NaN.
template <class V>
WEFT_INLINE V exp_within(V x) {
  V whole;
  const V r = reduce_by_log2(x, whole);
  return scaled(static_cast<V>(expm1_reduced(r) + lane<V>(1)), whole);
}
}  // namespace detail

/// Absolute value per lane; +0 for -0.
template <class V>
WEFT_INLINE V abs(V x) {
  if constexpr (std::is_integral_v<lane<V>>) return select(less(x, V{}), simd::negative(x), x);
  else if constexpr (detail::is_f32<V>)
    return bits_as<V>(
        static_cast<mask_of<V>>(bits_as<mask_of<V>>(x) & std::int32_t{0x7fffffff}));
  else return map_lanes(x, [](auto e) { return std::abs(e); });
}

/// Correctly rounded, so that any instruction gives the same result; not std::sqrt, which branches to set
/// errno.
template <class V>
WEFT_INLINE V sqrt(V x) {
#if __has_builtin(__builtin_elementwise_sqrt)
  if constexpr (!std::is_integral_v<lane<V>>) return __builtin_elementwise_sqrt(x);
#else
#if defined(__AVX512F__) && defined(__clang__)  // clang up to 17
  if constexpr (std::is_same_v<V, vec<float, 16>>) return __builtin_ia32_sqrtps512(x, 4);
  if constexpr (std::is_same_v<V, vec<double, 8>>) return __builtin_ia32_sqrtpd512(x, 4);
#elif defined(__AVX512F__)
  if constexpr (std::is_same_v<V, vec<float, 16>>)
    return __builtin_ia32_sqrtps512_mask(x, x, static_cast<short>(-1), 4);
  if constexpr (std::is_same_v<V, vec<double, 8>>)
    return __builtin_ia32_sqrtpd512_mask(x, x, static_cast<char>(-1), 4);
#endif
#if defined(__AVX__)
  if constexpr (std::is_same_v<V, vec<float, 8>>) return __builtin_ia32_sqrtps256(x);
  if constexpr (std::is_same_v<V, vec<double, 4>>) return __builtin_ia32_sqrtpd256(x);
#endif
#if defined(__x86_64__)
  if constexpr (std::is_same_v<V, vec<float, 4>>) return __builtin_ia32_sqrtps(x);
  if constexpr (std::is_same_v<V, vec<double, 2>>) return __builtin_ia32_sqrtpd(x);
  if constexpr (lane_count<V> == 1) return sqrt(vec<V, 16 / sizeof(V)>{x})[0];
#endif
#endif
  return map_lanes(x, [](auto e) { return std::sqrt(e); });
}

/// e to the power x per lane.
template <class V>
WEFT_INLINE V exp(V x) {
  if constexpr (detail::is_f32<V>) {
    const auto gone =
        less(x, splat<V>(-104.f));  // set to zero, as computing it takes a hundred times as long
    return select(gone, V{}, detail::exp_within(select(gone, V{}, lesser(splat<V>(89.f), x))));
  } else if constexpr (detail::is_f64<V>) {
    return detail::exp_within(greater(splat<V>(-746.0), lesser(splat<V>(710.0), x)));
  } else {
    return map_lanes(x, [](auto e) { return std::exp(e); });
  }
}

/// Natural logarithm per lane.
template <class V>
WEFT_INLINE V log(V x) {
  if constexpr (detail::is_f32<V>) {
    using I = rebind<V, std::int32_t>;
    constexpr float c[] = {0.3333331043f,  -0.2499998677f, 0.2000222716f,
                           -0.166692421f,  0.1421864148f,  -0.1238448914f,
                           0.118732302f,   -0.1178908429f, 0.06913950494f};
    const auto tiny = less(x, splat<V>(1.17549435e-38f));
    const V scaled = select(tiny, x * 8388608.f, x);  // subnormal numbers become normal
    const I bits = bits_as<I>(scaled);
    I exponent = ((bits >> 23) & 0xff) - 126;
    V m = bits_as<V>(static_cast<I>((bits & 0x007fffff) | 0x3f000000));  // [1/2, 1)
    const auto low = less(m, splat<V>(0.707106781186547524f));
    exponent += low;
    m = select(low, m + m, m) - 1.f;
    const V e = convert<float>(exponent) - select(tiny, splat<V>(23.f), V{});
    const V square = m * m;
    V y = multiply_add(detail::polynomial(m, c) * m, square, multiply(square, -0.5f));
    y = multiply_add(e, 0.693359375f, m + multiply_add(e, -2.12194440e-4f, y));
    const V infinity = splat<V>(__builtin_inff());
    y = select(less(x, infinity), y, x);  // infinity and NaN are unchanged
    y = select(equal(x, V{}), -infinity, y);
    return select(less(x, V{}), splat<V>(__builtin_nanf("")), y);
  } else {
    return map_lanes(x, [](auto e) { return std::log(e); });
  }
}

/// Hyperbolic tangent per lane.
template <class V>
WEFT_INLINE V tanh(V x) {
  if constexpr (detail::is_f32<V>) {
    constexpr float c[] = {-0.3333326282f, 0.1333089851f, -0.05369288337f, 0.02048308627f,
                           -0.005528416287f};
    const V a = abs(x);
    const V square = a * a;
    const V small = multiply_add(detail::polynomial(square, c), square * a, a);
    const V bounded = lesser(splat<V>(10.f), a);
    const V large = 1.f - 2.f / (detail::exp_within(bounded + bounded) + 1.f);
    return detail::with_sign_of(x, select(less(a, splat<V>(0.65f)), small, large));
  } else {
    return map_lanes(x, [](auto e) { return std::tanh(e); });
  }
}

/// Error function per lane.
template <class V>
WEFT_INLINE V erf(V x) {
  if constexpr (detail::is_f32<V>) {
    constexpr float near[] = {0.1283791661f,    -0.3761262596f,    0.1128358245f, -0.02685369179f,
                              0.005188099109f, -0.0008008189034f, 7.847259258e-05f};
    constexpr float far[] = {0.2822754964f, 0.2792502718f,  0.265590181f,   0.1104633701f,
                             0.2095773966f, -0.1090850328f, -0.0907212881f, 0.05287607149f};
    const V a = abs(x);
    const V square = x * x;
    const V small = multiply_add(detail::polynomial(square, near), x, x);
    const V bounded = lesser(splat<V>(4.f), a);
    const V u = 1.f / multiply_add(bounded, 0.5f, 1.f);
    const V gauss = detail::exp_within(multiply(-bounded, bounded));
    const V large = multiply_add(gauss, -(detail::polynomial(u, far) * u), 1.f);
    const V signed_large = select(less(x, V{}), -large, large);
    return select(less(a, splat<V>(1.f)), small, signed_large);
  } else {
    return map_lanes(x, [](auto e) { return std::erf(e); });
  }
}

/// log(1 + x) as the logarithm of the rounded sum plus a correction for its rounding error.
template <class V>
WEFT_INLINE V log1p(V x) {
  if constexpr (detail::is_f32<V>) {
    const V sum = x + 1.f;
    const auto finite = less(V{}, sum) & less(sum, splat<V>(__builtin_inff()));
    const V lost = select(finite, (x - (sum - 1.f)) / sum, V{});
    return select(equal(x, V{}), x, log(sum) + lost);  // keeps the sign of zero
  } else {
    return map_lanes(x, [](auto e) { return std::log1p(e); });
  }
}

/// exp(x) - 1 per lane.
template <class V>
WEFT_INLINE V expm1(V x) {
  if constexpr (detail::is_f32<V>) {
    const V clamped = greater(splat<V>(-20.f), lesser(splat<V>(89.f), x));
    V whole;
    const V r = detail::reduce_by_log2(clamped, whole);
    const auto less_one = detail::integer_of(whole) - 1;  // half of it, because 2^128 is not a float
    const V half = detail::power_of_two<V>(static_cast<rebind<V, std::int32_t>>(less_one));
    const V y = multiply(multiply_add(half, detail::expm1_reduced(r), half - 0.5f), 2.f);
    return select(equal(x, V{}), x, y);
  } else {
    return map_lanes(x, [](auto e) { return std::expm1(e); });
  }
}

namespace detail {
/// Largest argument for which multiples of the first part of pi / 2 are exact in f64.
inline constexpr float farthest_by_quarters = 1e6f;

/// x = whole pi / 2 + r with |r| <= pi / 4, for one f64 or a vector of them.
template <class D>
WEFT_INLINE D whole_quarters(D x) {
  constexpr double magic = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  return multiply_add(x, 0.63661977236758134308, magic) - magic;
}
template <class D>
WEFT_INLINE D without_quarters(D x, D whole) {
  return multiply_add(whole, -0x1.0b4611a626331p-34, multiply_add(whole, -0x1.921fb544p+0, x));
}
/// x = turns pi / 2 + r, computed in f64; |x| must be below farthest_by_quarters.
template <class V>
WEFT_INLINE V reduce_by_quarters(V x, rebind<V, std::int32_t>& turns) {
  if constexpr (lane_count<V> == 1) {
    const double wide = x, whole = whole_quarters(wide);
    turns = static_cast<std::int32_t>(whole);
    return static_cast<float>(without_quarters(wide, whole));
  } else {
    constexpr int half = lane_count<V> / 2;  // as many f64 as a register holds
    float lanes[std::size_t{2 * half}];
    std::int32_t quarters[std::size_t{2 * half}];
    simd::store(lanes, x);
    for (int h = 0; h < 2 * half; h += half) {
      const auto wide = convert<double>(load<vec<float, half>>(lanes + h)), whole = whole_quarters(wide);
      simd::store(lanes + h, convert<float>(without_quarters(wide, whole)));
      simd::store(quarters + h, convert<std::int32_t>(whole));
    }
    turns = load<rebind<V, std::int32_t>>(quarters);
    return load<V>(lanes);
  }
}

/// Sine (quarter 0) or cosine (1) of x; lanes of large magnitude use the C library.
template <class V, class Exact>
WEFT_INLINE V sine_or_cosine(V x, int quarter, Exact exact) {
  using I = rebind<V, std::int32_t>;
  const auto near = less(abs(x), splat<V>(farthest_by_quarters));  // false for NaN
  I turns;
  const V r = reduce_by_quarters(select(near, x, V{}), turns);
  turns += quarter;
  const V square = r * r;
  constexpr float sine[] = {-0.1666665375f, 0.008332148194f, -0.0001951386657f};
  constexpr float cosine[] = {0.04166664556f, -0.001388728968f, 2.443049925e-05f};
  const V odd = multiply_add(polynomial(square, sine), square * r, r);
  const V even = multiply_add(polynomial(square, cosine), square * square, multiply_add(square, -0.5f, 1.f));
  V y = select(equal(convert<float>(static_cast<I>(turns & 1)), V{}), odd, even);
  y = select(equal(convert<float>(static_cast<I>(turns & 2)), V{}), y, -y);
  if constexpr (lane_count<V> == 1) return near ? y : exact(x);
  else {
    if (__builtin_expect(any(static_cast<I>(~near)), 0))
      for (int i = 0; i < lane_count<V>; ++i)
        if (!near[i]) y[i] = exact(x[i]);
    return y;
  }
}
}  // namespace detail

/// Sine per lane, of an angle in radians.
template <class V>
WEFT_INLINE V sin(V x) {
  const auto exact = [](auto e) { return std::sin(e); };
  if constexpr (detail::is_f32<V>) return select(equal(x, V{}), x, detail::sine_or_cosine(x, 0, exact));
  else return map_lanes(x, exact);
}
/// Cosine per lane, of an angle in radians.
template <class V>
WEFT_INLINE V cos(V x) {
  const auto exact = [](auto e) { return std::cos(e); };
  if constexpr (detail::is_f32<V>) return detail::sine_or_cosine(x, 1, exact);
  else return map_lanes(x, exact);
}

/// Arc tangent per lane, in [-pi / 2, pi / 2].
template <class V>
WEFT_INLINE V atan(V x) {
  if constexpr (detail::is_f32<V>) {
    constexpr float c[] = {-0.33333227f, 0.19994999f, -0.14206554f, 0.10520802f, -0.067464754f, 0.02495617f};
    const V a = abs(x), one = splat<V>(1.f);
    const auto steep = less(splat<V>(2.4142136f), a), middle = less(splat<V>(0.66f), a);
    // atan(a) = base + atan(r) with base pi / 2, pi / 4 or 0, in two parts
    const V r = select(steep, -one / a, select(middle, (a - one) / (a + one), a));
    const V base = select(steep, splat<V>(1.57079637f), select(middle, splat<V>(0.785398185f), V{}));
    const V rest = select(steep, splat<V>(-4.37113883e-8f), select(middle, splat<V>(-2.18556941e-8f), V{}));
    const V square = r * r;
    return detail::with_sign_of(x,
                                base + (multiply_add(detail::polynomial(square, c) * square, r, r) + rest));
  } else {
    return map_lanes(x, [](auto e) { return std::atan(e); });
  }
}

/// Nearest integer per lane, ties to even.
template <class V>
WEFT_INLINE V round(V x) {
  if constexpr (detail::is_f32<V>) {
    const V a = abs(x);
    const V whole = detail::with_sign_of(x, (a + 8388608.f) - 8388608.f);
    return select(less(a, splat<V>(8388608.f)), whole, x);  // 2^23: larger values are integers; NaN stays
  } else {
    return map_lanes(x, [](auto e) { return std::nearbyint(e); });
  }
}
/// Largest integer not above x, per lane.
template <class V>
WEFT_INLINE V floor(V x) {
  if constexpr (detail::is_f32<V>) {
    const V whole = round(x);
    return select(less(x, whole), whole - 1.f, whole);
  } else {
    return map_lanes(x, [](auto e) { return std::floor(e); });
  }
}

}  // namespace WEFT_ISA
}  // namespace weft::math
