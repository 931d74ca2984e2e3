// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <bit>
#include <limits>
#include <vector>

#include <weft/device/cpu/random.hpp>
#include <weft/device/math.hpp>
#include <weft/device/memory.hpp>
#include <weft/device/device.hpp>

using namespace weft;

namespace {
using vector = simd::vec<float, vector_bytes / 4>;

/// Largest error in units of the last place over floats of all sizes and both signs, every `step`-th; vectors and single lanes
/// must agree on what is no number or infinite.
template <class F, class G>
double worst_ulp(F f, G exact, std::uint32_t step = 997) {
  double worst = 0;
  for (std::uint64_t bits = 0; bits < 0x1'0000'0000; bits += step) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    const double right = exact(static_cast<double>(x));
    const auto rounded = static_cast<float>(right);
    for (const float y : {f(simd::splat<vector>(x))[1], f(x)}) {
      if (std::isfinite(rounded) && std::isfinite(y)) {
        const double ulp = std::max<double>(std::abs(std::nextafter(std::abs(rounded), std::numeric_limits<float>::infinity()) - std::abs(rounded)), 1e-45f);
        worst = std::max(worst, std::abs(y - right) / ulp);
      } else if (std::isnan(rounded) != std::isnan(y) || (!std::isnan(y) && std::abs(right) < 3.4028e38 && std::isinf(y))) {
        CAPTURE(x);
        FAIL_CHECK(y << " where " << rounded << " is right");
        return worst;
      }
    }
  }
  return worst;
}
}  // namespace

#define FUNCTION(name) [](auto x) { return math::name(x); }, [](double x) { return std::name(x); }

TEST_CASE("elementary functions: ulps over all floats") {
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
