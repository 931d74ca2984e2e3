// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <bit>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include <weft/device/cpu/random.hpp>
#include <weft/device/math.hpp>

using namespace weft;

namespace {
using vector = simd::vec<float, vector_bytes / 4>;

/// Largest error in units of the last place over floats whose bits are in [first, last), every `step`-th; what is no number or
/// infinite must be so, and single lanes as good as vectors.
template <class F, class G>
double worst_ulp(F f, G exact, std::uint64_t first = 0, std::uint64_t last = 0x1'0000'0000, std::uint32_t step = 997) {
  constexpr int lanes = simd::lane_count<vector>;
  double worst = 0;
  const auto check = [&](float x, float y) {
    const double right = exact(static_cast<double>(x));
    const auto rounded = static_cast<float>(right);
    if (std::isfinite(rounded) && std::isfinite(y)) {
      const float size = std::abs(rounded);
      const double ulp = static_cast<double>(std::bit_cast<float>(std::bit_cast<std::uint32_t>(size) + 1)) - size;
      worst = std::max(worst, std::abs(y - right) / ulp);
    } else if (std::isnan(rounded) != std::isnan(y) || (!std::isnan(y) && std::abs(right) < 3.4028e38 && std::isinf(y))) {
      worst = std::numeric_limits<double>::infinity();
      CAPTURE(x);
      FAIL_CHECK(y << " where " << rounded << " is right");
    }
  };
  for (std::uint64_t bits = first; bits < last && std::isfinite(worst); bits += std::uint64_t{lanes} * step) {
    vector x;
    for (int l = 0; l < lanes; ++l) x[l] = std::bit_cast<float>(static_cast<std::uint32_t>(std::min(bits + std::uint64_t(l) * step, last - 1)));
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

TEST_CASE("elementary functions: ulps over floats of all sizes and both signs") {
  CHECK(worst_ulp(FUNCTION(exp)) < 1.5);
  CHECK(worst_ulp(FUNCTION(log)) < 1.5);
  CHECK(worst_ulp(FUNCTION(tanh)) < 2);
  CHECK(worst_ulp(FUNCTION(erf)) < 2);
  CHECK(worst_ulp(FUNCTION(expm1)) < 2);
  CHECK(worst_ulp(FUNCTION(log1p)) < 2);
  CHECK(worst_ulp(FUNCTION(sin)) < 2);
  CHECK(worst_ulp(FUNCTION(cos)) < 2);
  CHECK(worst_ulp(FUNCTION(floor)) == 0);
  CHECK(worst_ulp([](auto x) { return math::round(x); }, [](double x) { return std::nearbyint(x); }) == 0);
}

TEST_CASE("elementary functions: ulps over every float of one sign" * doctest::skip(std::getenv("WEFT_TEST_LARGE") == nullptr)) {
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
  CHECK(report("expm1, x <= 0", worst_ulp(FUNCTION(expm1), negative, end, 1)) < 2);
  CHECK(report("log1p", worst_ulp(FUNCTION(log1p), 0, negative, 1)) < 2);
  CHECK(report("sin", worst_ulp(FUNCTION(sin), 0, negative, 1)) < 2);
  CHECK(report("cos", worst_ulp(FUNCTION(cos), 0, negative, 1)) < 2);
}

TEST_CASE("elementary functions: infinities, NaN, zeros, subnormal numbers") {
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(math::exp(inf) == inf);
  CHECK(math::exp(-inf) == 0);
  CHECK(std::isnan(math::exp(nan)));
  CHECK(math::exp(-100.0f) == doctest::Approx(3.78e-44).epsilon(0.05));
  CHECK(math::log(0.0f) == -inf);
  CHECK(math::log(inf) == inf);
  CHECK(std::isnan(math::log(-1.0f)));
  CHECK(math::log(1e-42f) == doctest::Approx(std::log(1e-42f)));
  CHECK(math::tanh(inf) == 1);
  CHECK(math::tanh(-inf) == -1);
  CHECK(std::isnan(math::tanh(nan)));
  CHECK(math::erf(-inf) == -1);
  CHECK(math::expm1(-inf) == -1);
  CHECK(math::expm1(inf) == inf);
  CHECK(math::log1p(-1.0f) == -inf);
  CHECK(math::log1p(inf) == inf);
  CHECK(std::isnan(math::log1p(-1.5f)));
  CHECK(std::isnan(math::sin(inf)));
  for (const auto& f : std::vector<float (*)(float)>{&math::expm1<float>, &math::log1p<float>, &math::sin<float>, &math::floor<float>, &math::round<float>, &math::tanh<float>, &math::erf<float>}) {
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
  for (index_t i = 0; i < 1000; ++i) CHECK(whole[static_cast<std::size_t>(i)] == unit_interval(philox_word(key, static_cast<std::uint64_t>(first + i))));
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
