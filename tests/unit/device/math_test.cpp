// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <weft/device/random.hpp>
#include <weft/device/power.hpp>

using namespace weft;

namespace {
using vector = simd::vec<float, vector_bytes / 4>;

/// The error of `y` in units in the last place of the float nearest to `right`, where infinity counts as
/// 2^128; infinite if only one of them is NaN.
double ulps(float y, double right) {
  if (std::isnan(right) || std::isnan(y))
    return std::isnan(right) == std::isnan(y) ? 0 : std::numeric_limits<double>::infinity();
  const auto number = [](double x) { return std::isinf(x) ? std::copysign(0x1p128, x) : x; };
  const double limited = std::clamp(number(right), -0x1p128, 0x1p128);
  const double size = std::min(std::abs(static_cast<double>(static_cast<float>(limited))), 0x1.fffffep127);
  const auto nearest = static_cast<float>(size);
  const double ulp =
      nearest == std::numeric_limits<float>::max()
          ? 0x1p104
          : static_cast<double>(std::bit_cast<float>(std::bit_cast<std::uint32_t>(nearest) + 1)) - size;
  return std::abs(number(y) - limited) / ulp;
}

/// The largest error in units in the last place over every `step`-th float with bits in [first, last); single
/// lanes equal vectors.
template <class F, class G>
double worst_ulp(F f, G exact, std::uint64_t first = 0, std::uint64_t last = 0x1'0000'0000,
                 std::uint32_t step = 997) {
  constexpr int lanes = simd::lane_count<vector>;
  double worst = 0;
  const auto check = [&](float x, float y) {
    const double right = exact(static_cast<double>(x)), error = ulps(y, right);
    if (!(error <= worst)) worst = error;
    if (std::isinf(error)) {
      CAPTURE(x);
      FAIL_CHECK(y << " where " << right << " is right");
    }
  };
  for (std::uint64_t bits = first; bits < last && std::isfinite(worst); bits += std::uint64_t{lanes} * step) {
    vector x;
    for (int l = 0; l < lanes; ++l)
      x[l] = std::bit_cast<float>(
          static_cast<std::uint32_t>(std::min(bits + std::uint64_t(l) * step, last - 1)));
    const vector y = f(x);
    for (int l = 0; l < lanes; ++l) {
      check(x[l], y[l]);
      check(x[l], f(x[l]));
    }
  }
  return worst;
}
}  // namespace

#define FUNCTION(name) [](auto x) { return math::name(x); }, [](double x) { return std::name(x); }

TEST_CASE("the error in ulps counts what is no number, infinite, or one too far") {
  constexpr float largest = std::numeric_limits<float>::max();
  constexpr double inf = std::numeric_limits<double>::infinity(),
                   none = std::numeric_limits<double>::quiet_NaN();
  CHECK(ulps(1, 1) == 0);
  CHECK(ulps(std::nextafter(1.0f, 2.0f), 1) == 1);
  CHECK(ulps(0x1p-149f, 0) == 1);
  CHECK(ulps(static_cast<float>(none), 1) == inf);
  CHECK(ulps(1, none) == inf);
  CHECK(ulps(static_cast<float>(none), none) == 0);
  CHECK(ulps(static_cast<float>(inf), inf) == 0);
  CHECK(ulps(static_cast<float>(inf), 1e39) == 0);
  CHECK(ulps(largest, 1e300) == 1);
  CHECK(ulps(1, inf) > 1e6);
  CHECK(ulps(static_cast<float>(-inf), inf) > 1e6);
  CHECK(ulps(static_cast<float>(inf), 1) > 1e6);
}

TEST_CASE("elementary functions: ulps over floats of all sizes and both signs") {
  CHECK(worst_ulp(FUNCTION(exp)) < 1.5);
  CHECK(worst_ulp(FUNCTION(log)) < 1.5);
  CHECK(worst_ulp(FUNCTION(tanh)) < 2);
  CHECK(worst_ulp(FUNCTION(erf)) < 2);
  CHECK(worst_ulp(FUNCTION(atan)) < 2);
  CHECK(worst_ulp(FUNCTION(expm1)) < 2);
  CHECK(worst_ulp(FUNCTION(log1p)) < 2);
  CHECK(worst_ulp(FUNCTION(sin)) < 2);
  CHECK(worst_ulp(FUNCTION(cos)) < 2);
  CHECK(worst_ulp(FUNCTION(floor)) == 0);
  CHECK(worst_ulp([](auto x) { return math::round(x); }, [](double x) { return std::nearbyint(x); }) == 0);
}

TEST_CASE("pow: exponents of a few instructions, in vectors of one exponent and of several") {
  constexpr int lanes = simd::lane_count<vector>;
  for (const double e : {-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, -3.0, 4.0, 1.5, 2.5, 0.25}) {
    CAPTURE(e);
    const auto exact = [e](double x) { return std::pow(x, e); };
    const auto uniform = [e](auto x) {
      return math::pow(x, simd::splat<decltype(x)>(static_cast<float>(e)));
    };
    CHECK(worst_ulp(uniform, exact) <= 2);
    const auto mixed = [e](auto x) {  // of one lane another exponent
      auto y = simd::splat<decltype(x)>(static_cast<float>(e));
      if constexpr (simd::lane_count<decltype(x)> > 1) y[1] = 7;
      return math::pow(x, y);
    };
    for (std::uint64_t bits = 0; bits < 0x1'0000'0000; bits += std::uint64_t{lanes} * 9973) {
      vector x;
      for (int l = 0; l < lanes; ++l)
        x[l] = std::bit_cast<float>(static_cast<std::uint32_t>(bits + std::uint64_t(l) * 9973));
      const vector a = uniform(x), b = mixed(x);
      for (int l = 0; l < lanes; ++l)
        if (l != 1 &&
            std::bit_cast<std::uint32_t>(float(a[l])) != std::bit_cast<std::uint32_t>(float(b[l])) &&
            a[l] == a[l])
          FAIL_CHECK(x[l] << ": " << a[l] << " alone, " << b[l] << " beside another exponent");
    }
    for (const float x : {0.0f, -0.0f, HUGE_VALF, -HUGE_VALF, NAN, 1e-40f, -1e-40f, -1.0f}) {
      const float y = uniform(x), wanted = static_cast<float>(std::pow(double(x), e));
      CAPTURE(x);
      CHECK(std::isnan(y) == std::isnan(wanted));
      if (!std::isnan(wanted)) CHECK(std::signbit(y) == std::signbit(wanted));
      CHECK(ulps(y, exact(double(x))) <= 2);
    }
  }
}

TEST_CASE("pow: any base and exponent, vectors and single lanes alike") {
  constexpr int lanes = simd::lane_count<vector>;
  const auto check = [](const std::vector<float>& bases, const std::vector<float>& exponents) {
    for (std::size_t i = 0; i + lanes <= bases.size(); i += lanes) {
      const vector y = math::pow(simd::load<vector>(&bases[i]), simd::load<vector>(&exponents[i]));
      for (int l = 0; l < lanes; ++l) {
        const float x = bases[i + std::size_t(l)], e = exponents[i + std::size_t(l)];
        const float alone = math::pow(x, e);
        const double right = std::pow(double(x), double(e)), error = ulps(alone, right);
        if (std::bit_cast<std::uint32_t>(alone) != std::bit_cast<std::uint32_t>(float(y[l])) &&
            !(std::isnan(alone) && std::isnan(float(y[l]))))
          FAIL_CHECK(x << " to the power " << e << ": " << alone << " alone, " << y[l] << " in a vector");
        const bool few = std::abs(e) == 0.5f || (std::abs(e) <= 3 && e == std::round(e));
        if (!(error <= (few ? 2 : 0.51)) ||
            (!std::isnan(right) && std::signbit(alone) != std::signbit(right)))
          FAIL_CHECK(x << " to the power " << e << ": " << alone << ", not " << right);
      }
    }
  };
  std::vector<float> bases, exponents;
  constexpr float special[] = {0,     0.5f, 1,   2,         3,         1.5f,      2.5f,
                               -3.5f, 4,    7,   101,       1e-40f,    16777215,  16777216,
                               3e38f, 1e9f, NAN, HUGE_VALF, 0x1p-149f, 0.9999999f};
  for (const float x : special)
    for (const float e : special)
      for (const float signs : {1.f, -1.f})
        for (const float of_e : {1.f, -1.f}) {
          bases.push_back(signs * x);
          exponents.push_back(of_e * e);
        }
  check(bases, exponents);
  bases.clear(), exponents.clear();
  std::mt19937 random(5);
  std::uniform_real_distribution<float> logarithm(-60, 60), power(-150, 150), near(0.9f, 1.1f);
  for (int i = 0; i < 300'000; ++i) {
    const float x = i % 3 == 0 ? near(random) : std::exp(logarithm(random));
    bases.push_back(i % 7 == 0 ? -x : x);
    exponents.push_back(i % 3 == 0   ? 40 * power(random)
                        : i % 7 == 0 ? std::round(power(random))
                                     : power(random) / std::abs(std::log2(x)));
  }
  check(bases, exponents);
}

TEST_CASE("pow of f64: exponents of a few instructions, vectors and single lanes alike") {
  using doubles = simd::vec<double, vector_bytes / 8>;
  constexpr int lanes = simd::lane_count<doubles>;
  for (const double e : {-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 2.5})
    for (double x = 1e-90; x < 1e90; x *= 1.7) {
      const double wanted = std::pow(x, e), ulp = std::nextafter(wanted, HUGE_VAL) - wanted;
      const doubles y = math::pow(simd::splat<doubles>(x), simd::splat<doubles>(e));
      CHECK(std::abs(y[lanes - 1] - wanted) <= 3 * ulp);  // std::pow's own error is one of them
      CHECK(math::pow(x, e) == y[0]);
    }
}

TEST_CASE("elementary functions: ulps over every float of one sign" *
          doctest::skip(std::getenv("WEFT_TEST_LARGE") == nullptr)) {
  constexpr std::uint64_t negative = 0x8000'0000, end = 0x1'0000'0000;
  const auto report = [](const std::string& name, double ulps) {
    MESSAGE(name << ": " << ulps << " ulp");
    return ulps;
  };
  CHECK(report("exp, x >= 0", worst_ulp(FUNCTION(exp), 0, negative, 1)) < 1.5);
  CHECK(report("exp, x <= 0", worst_ulp(FUNCTION(exp), negative, end, 1)) < 1.5);
  CHECK(report("log", worst_ulp(FUNCTION(log), 0, negative, 1)) < 1.5);
  CHECK(report("tanh", worst_ulp(FUNCTION(tanh), 0, negative, 1)) < 2);
  CHECK(report("erf", worst_ulp(FUNCTION(erf), 0, negative, 1)) < 2);
  CHECK(report("atan", worst_ulp(FUNCTION(atan), 0, negative, 1)) < 2);
  CHECK(report("expm1, x <= 0", worst_ulp(FUNCTION(expm1), negative, end, 1)) < 2);
  CHECK(report("log1p", worst_ulp(FUNCTION(log1p), 0, negative, 1)) < 2);
  CHECK(report("sin", worst_ulp(FUNCTION(sin), 0, negative, 1)) < 2);
  CHECK(report("cos", worst_ulp(FUNCTION(cos), 0, negative, 1)) < 2);
}

TEST_CASE("exp of f64: ulps, vectors and single lanes alike") {
  using doubles = simd::vec<double, vector_bytes / 8>;
  constexpr int lanes = simd::lane_count<doubles>;
  double worst = 0;
  for (double x = -750; x < 715; x += 0.0137) {
    doubles v;
    for (int l = 0; l < lanes; ++l) v[l] = x + 0.0137 * l / lanes;
    const doubles y = math::exp(v);
    for (int l = 0; l < lanes; ++l) {
      const long double right = std::exp(static_cast<long double>(v[l]));
      CHECK(std::bit_cast<std::uint64_t>(math::exp(v[l])) == std::bit_cast<std::uint64_t>(y[l]));
      if (right >= static_cast<long double>(std::numeric_limits<double>::max())) {
        CHECK(std::isinf(y[l]));
        continue;
      }
      const double nearest = static_cast<double>(right), ulp = std::nextafter(nearest, 1e308) - nearest;
      worst = std::max(worst, static_cast<double>(std::abs(static_cast<long double>(y[l]) - right) /
                                                  static_cast<long double>(ulp)));
    }
  }
  CHECK(worst < 1);
  constexpr double inf = std::numeric_limits<double>::infinity();
  CHECK(math::exp(inf) == inf);
  CHECK(math::exp(-inf) == 0);
  CHECK(math::exp(0.0) == 1);
  CHECK(std::isnan(math::exp(std::numeric_limits<double>::quiet_NaN())));
}

TEST_CASE("elementary functions: infinities, NaN, zeros, subnormal numbers") {
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(math::exp(inf) == inf);
  CHECK(math::exp(-inf) == 0);
  CHECK(std::isnan(math::exp(nan)));
  CHECK(ulps(math::exp(-100.0f), std::exp(-100.0)) < 1.5);  // subnormal: 27 of the smallest
  CHECK(math::log(0.0f) == -inf);
  CHECK(math::log(inf) == inf);
  CHECK(std::isnan(math::log(-1.0f)));
  CHECK(ulps(math::log(1e-42f), std::log(static_cast<double>(1e-42f))) < 1.5);
  CHECK(math::tanh(inf) == 1);
  CHECK(math::tanh(-inf) == -1);
  CHECK(std::isnan(math::tanh(nan)));
  CHECK(math::erf(-inf) == -1);
  CHECK(math::atan(-inf) == static_cast<float>(-std::acos(0.0)));
  CHECK(math::expm1(-inf) == -1);
  CHECK(math::expm1(inf) == inf);
  CHECK(math::log1p(-1.0f) == -inf);
  CHECK(math::log1p(inf) == inf);
  CHECK(std::isnan(math::log1p(-1.5f)));
  CHECK(std::isnan(math::sin(inf)));
  for (const auto& f : std::vector<float (*)(float)>{
           &math::expm1<float>, &math::log1p<float>, &math::sin<float>, &math::floor<float>,
           &math::round<float>, &math::tanh<float>, &math::erf<float>, &math::atan<float>}) {
    CHECK(f(0.0f) == 0);
    CHECK(std::signbit(f(-0.0f)));
    CHECK(!std::signbit(f(0.0f)));
    CHECK(std::isnan(f(nan)));
  }
  CHECK(std::signbit(math::round(-0.4f)));
  CHECK(std::isnan(simd::maximum(1.0f, nan)));
  CHECK(std::isnan(simd::minimum(nan, 1.0f)));
}

TEST_CASE("random elements depend on their number alone; normal ones have the moments of the distribution") {
  const philox_key key{3, 5};
  const index_t first = (index_t{1} << 34) - 50;  // counters pass 2^32
  std::vector<float> whole(1000), part(313);
  cpu::fill_uniform(key, first, 1000, whole.data());
  for (index_t i = 0; i < 1000; ++i)
    CHECK(whole[static_cast<std::size_t>(i)] ==
          unit_interval(philox_word(key, static_cast<std::uint64_t>(first + i))));
  cpu::fill_uniform(key, first + 7, 313, part.data());
  CHECK(std::equal(part.begin(), part.end(), whole.begin() + 7));
  cpu::fill_normal(key, first, 1000, whole.data());
  cpu::fill_normal(key, first + 7, 313, part.data());
  CHECK(std::equal(part.begin(), part.end(), whole.begin() + 7));
  whole.resize(1 << 20);
  cpu::fill_normal(key, 0, 1 << 20, whole.data());
  double moment[5] = {};
  for (float x : whole)
    for (int k = 1; k < 5; ++k) moment[k] += std::pow(double(x), k) / static_cast<double>(whole.size());
  CHECK(std::abs(moment[1]) < 0.005);
  CHECK(moment[2] == doctest::Approx(1).epsilon(0.01));
  CHECK(std::abs(moment[3]) < 0.02);
  CHECK(moment[4] == doctest::Approx(3).epsilon(0.02));
}
