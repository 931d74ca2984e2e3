// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <limits>

#include <weft/device/math.hpp>
#include <weft/device/memory.hpp>
#include <weft/device/device.hpp>

using namespace weft;

namespace {
using vector = simd::vec<float, vector_bytes / 4>;

/// Largest error in units of the last place over [low, high], vector and single lane alike.
template <class F, class G>
double worst_ulp(F f, G exact, float low, float high) {
  double worst = 0;
  for (int i = 0; i <= 200'000; ++i) {
    const float x = low + (high - low) * (static_cast<float>(i) / 200'000.0f);
    const double right = exact(static_cast<double>(x));
    const auto rounded = static_cast<float>(right);
    const double ulp = std::max(std::abs(std::nextafter(rounded, 1e38f) - rounded), 1e-45f);
    worst = std::max(worst, std::abs(f(simd::splat<vector>(x))[1] - right) / ulp);
    worst = std::max(worst, std::abs(f(x) - right) / ulp);
  }
  return worst;
}
}  // namespace

#define FUNCTION(name) [](auto x) { return math::name(x); }, [](double x) { return std::name(x); }

TEST_CASE("elementary functions: ulps") {
  CHECK(worst_ulp(FUNCTION(exp), -87, 88) < 1.5);
  CHECK(worst_ulp(FUNCTION(log), 1e-38f, 20) < 1.5);
  CHECK(worst_ulp(FUNCTION(tanh), -10, 10) < 2);
  CHECK(worst_ulp(FUNCTION(erf), -5, 5) < 4);
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
  CHECK(std::isnan(simd::maximum(1.0f, nan)));
  CHECK(std::isnan(simd::minimum(nan, 1.0f)));
}

TEST_CASE("memory: a freed block is handed out again, figures add up") {
  const device d(std::make_shared<cpu::cpu_backend>(1));
  void* first = nullptr;
  {
    const buffer b = d.allocate(1000);
    first = b.data();
    CHECK(reinterpret_cast<std::uintptr_t>(first) % 64 == 0);
    CHECK(d.memory().figures().in_use >= 1000);
  }
  CHECK(d.memory().figures().in_use == 0);
  CHECK(d.allocate(1000).data() == first);
  CHECK(d.memory().figures().requests == 1);
  d.memory().release_cached();
  CHECK(d.memory().figures().reserved == 0);
}
