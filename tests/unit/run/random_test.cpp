// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include <weft/nn/mixture_of_experts.hpp>
#include <weft/weft.hpp>

using namespace weft;

namespace {
variable<float, extents<dyn>> ones_of(index_t n) {
  return variable<float, extents<dyn>>(full<float>(extents<dyn>{n}, 1.0f));
}
struct block {
  parameter<extents<4>> w;
  auto operator()(expression auto x) const { return dropout(x, 0.5f) + 0.0f * w; }
};
struct dropping {
  linear<4, 4> map;
  auto operator()(expression auto x) const { return dropout(map(x), 0.5f); }
};
struct same {
  auto operator()(expression auto x) const { return x * 1.0f; }
};
}  // namespace

TEST_CASE("dropout: the rate, the scale, and the same mask in backward") {
  auto x = ones_of(20'000);
  tape steps;
  auto y = steps.eval(dropout(x, 0.25f));
  const auto v = y.to_vector();
  index_t dropped = 0;
  for (float e : v) {
    CHECK_UNARY(e == 0 || e == doctest::Approx(1 / 0.75f));
    dropped += e == 0;
  }
  CHECK(dropped == doctest::Approx(5000).epsilon(0.05));
  steps.backward(y, full<float>(extents<dyn>{20'000}, 1.0f));
  CHECK(x.grad().to_vector() == v);
}

TEST_CASE("random: two occurrences, two programs and two steps differ; a step can be repeated") {
  const auto draw = [](context& c, std::uint64_t step) {
    c.begin_step(step);
    auto x = ones_of(64);
    auto both = eval(uniform_like(x) - uniform_like(x), c).to_vector();
    for (float d : both) CHECK(d != 0);
    return std::pair{eval(uniform_like(x), c).to_vector(), eval(uniform_like(x), c).to_vector()};
  };
  context a, b;
  a.seed = b.seed = 3;
  const auto first = draw(a, 0), second = draw(a, 1), again = draw(b, 0);
  CHECK(first.first != first.second);
  CHECK(first.first != second.first);
  CHECK(first == again);
  b.seed = 4;
  CHECK(draw(b, 0).first != first.first);
}

TEST_CASE("normal_like: the distribution, its types, and no draw like another") {
  const auto moments = [](auto like) {
    const auto x = eval(cast<double>(normal_like(like))).to_vector();
    const auto n = static_cast<double>(x.size());
    double sums[4]{};
    for (double e : x)
      for (int k = 0; k < 4; ++k) sums[k] += std::pow(e, k + 1) / n;
    CHECK(std::abs(sums[0]) < 0.02);  // with 100,000 elements four deviations are 0.013
    CHECK(sums[1] == doctest::Approx(1).epsilon(0.02));
    CHECK(std::abs(sums[2]) < 0.06);
    CHECK(sums[3] == doctest::Approx(3).epsilon(0.06));
    // The shares below -2, -1, 0, 1 and 2 of a normal distribution.
    const std::pair<double, double> below[] = {
        {-2, 0.02275}, {-1, 0.158655}, {0, 0.5}, {1, 0.841345}, {2, 0.97725}};
    for (const auto& [limit, share] : below) {
      const auto count = std::count_if(x.begin(), x.end(), [&](double e) { return e < limit; });
      CHECK(static_cast<double>(count) / n == doctest::Approx(share).epsilon(0.02));
    }
  };
  const index_t n = 100'000;
  moments(ones_of(n));
  moments(full<double>(extents<100, 1000>{}, 1.0));
  moments(full<bfloat16>(extents<dyn>{n}, bfloat16(1.0f)));
  moments(full<float16>(extents<dyn>{n}, float16(1.0f)));
  static_assert(std::is_same_v<decltype(normal_like(zeros<bfloat16>(extents<2>{})))::value_type, bfloat16>);
  CHECK(eval(normal_like(zeros<float>(extents<dyn, 3>{0}))).size() == 0);
  // What is drawn is not a function of the elements, and has no derivative.
  const auto nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(eval(all(isfinite(normal_like(full<float>(extents<100>{}, nan))))).item());
  auto x = ones_of(100);
  context c;
  const auto noise = [&] {
    c.begin_step(0);
    return eval(normal_like(x), c).to_vector();
  };
  CHECK(noise() == noise());
  auto e = normal_like(x);
  CHECK(eval(sum(abs(e - e))).item() == 0);
  CHECK(eval(amin(abs(normal_like(x) - normal_like(x)))).item() > 0);
  tape steps;
  steps.backward(steps.eval(sum(x * 3.0f + e)));
  CHECK(x.grad().to_vector() == std::vector<float>(100, 3.0f));
}

TEST_CASE("random: bits do not depend on the number of threads") {
  const device one(std::make_shared<cpu::cpu_backend>(1)), two(std::make_shared<cpu::cpu_backend>(2));
  context a(one), b(two);
  const auto x = full<float>(extents<dyn>{100'001}, 1.0f, one),
             y = full<float>(extents<dyn>{100'001}, 1.0f, two);
  CHECK(eval(uniform_like(x), a).to_vector() == eval(uniform_like(y), b).to_vector());
  CHECK(eval(normal_like(x), a).to_vector() == eval(normal_like(y), b).to_vector());
}

TEST_CASE("random: dropout in each block of a repeat is its own") {
  repeat<block> h;
  for (int i = 0; i < 2; ++i) h.blocks.push_back({parameter<extents<4>>(full<float>(extents<4>{}, 1.0f))});
  context c;
  auto x = full<float>(extents<dyn, 4>{500, 4}, 1.0f);
  index_t twice = 0;
  for (float e : eval(h(x), c).to_vector()) twice += e == 4;
  CHECK(twice ==
        doctest::Approx(500).epsilon(0.15));  // a quarter survives both; half would if masks were one
}

TEST_CASE("random: copies are one draw before and after blocks, in lets, in shared values and in backward") {
  repeat<same> h;
  h.blocks.resize(2);
  auto x = full<float>(extents<25, 4>{}, 1.0f);
  const auto differ = [](auto a, auto b) { return eval(sum(abs(a - b))).item() > 0; };
  auto e = dropout(x, 0.5f);
  CHECK_FALSE(differ(e, h(e)));
  CHECK_FALSE(differ(e, let(h(e) + 1.0f, [&](auto a) { return a + h(e) - a; })));
  CHECK_FALSE(differ(e * 2.0f, let(x + 1.0f, [&](auto a) {
                       return let(dropout(a, 0.5f), [&](auto b) { return b - h(b) + e * a; });
                     })));
  CHECK_FALSE(differ(shared(e + 1.0f), h(e) + 1.0f));
  auto s = shared(dropout(x, 0.5f));
  CHECK_FALSE(differ(s, h(s)));
  CHECK(differ(dropout(x, 0.5f), h(dropout(x, 0.5f))));

  variable<float, extents<25, 4>> v(x);
  tape steps;
  auto d = dropout(v, 0.5f);  // 2 v or 0
  steps.backward(steps.eval(sum(d * h(d))));
  index_t dropped = 0;
  for (float g : v.grad().to_vector()) {
    CHECK_UNARY(g == 0 || g == 8);
    dropped += g == 0;
  }
  CHECK(dropped == doctest::Approx(50).epsilon(0.2));
}

TEST_CASE("random: what a repeat or experts draw inside is one value where their call is used twice") {
  repeat<block> h;
  h.blocks.push_back({parameter<extents<4>>(full<float>(extents<4>{}, 1.0f))});
  auto x = full<float>(extents<25, 4>{}, 1.0f);
  const auto differ = [](auto a, auto b) { return eval(sum(abs(a - b))).item() > 0; };
  auto y = h(x);
  CHECK_FALSE(differ(y, y));
  CHECK_FALSE(differ(y * 2.0f, let(x, [&](auto v) { return y + v + y - v; })));
  CHECK(differ(h(x), h(x)));

  variable<float, extents<25, 4>> v(x);
  tape steps;
  auto z = h(v);
  const auto loss = steps.eval(sum(z - z));
  CHECK(loss.item() == 0);
  steps.backward(loss);
  for (float g : v.grad().to_vector()) CHECK(g == 0);

  auto moe = mixture_of_experts<4, dropping>::create(4, 2, {}, [] { return dropping{}; });
  initialize(moe, 1);
  auto m = moe(x);
  CHECK_FALSE(differ(m, m));
}

TEST_CASE("bernoulli: the share of ones, its type, and probabilities that are none") {
  index_t ones = 0;
  for (float e : eval(bernoulli(full<float>(extents<dyn>{20'000}, 0.25f))).to_vector()) ones += e == 1;
  CHECK(ones == doctest::Approx(5000).epsilon(0.05));
  const std::vector<double> sure{0, 1, 1, 0};
  CHECK(eval(bernoulli(from(extents<4>{}, sure))).to_vector() == sure);
  CHECK(eval(cast<double>(bernoulli(cast<bfloat16>(from(extents<4>{}, sure))))).to_vector() == sure);
  const auto refused = [](double p, const char* what) {
    const auto x = from(extents<3>{}, std::vector<double>{0.5, p, 0.5});
    CHECK_THROWS_WITH_AS(eval(bernoulli(x)), what, value_error);
    CHECK_THROWS_AS(eval(bernoulli(cast<float>(x)) * 2.0f), value_error);
  };
  refused(1.5, "weft: bernoulli: a probability of 1.5 at position 1 is not in [0, 1]");
  refused(-0.125, "weft: bernoulli: a probability of -0.125 at position 1 is not in [0, 1]");
  refused(std::numeric_limits<double>::quiet_NaN(),
          "weft: bernoulli: a probability of nan at position 1 is not in [0, 1]");
}

TEST_CASE("multinomial: shares of draws, no position twice, every type of weights, weights that are none") {
  const std::vector<double> weights{1, 2, 3, 0, 2};
  constexpr index_t rows = 40'000;
  const auto check = [&]<class T>(T) {
    const auto all = eval(cast<T>(from(extents<5>{}, weights)) * ones<T>(extents<dyn, 1>{rows}));
    double first[5]{}, both[5][5]{};
    for (const std::int64_t drawn : eval(multinomial(all)).to_vector()) ++first[drawn];
    const auto pairs = eval(multinomial<2>(all));
    CHECK(pairs.extents() == shape{2, {rows, 2}});
    for (index_t i = 0; i < rows; ++i) ++both[pairs(i, 0)][pairs(i, 1)];
    for (int i = 0; i < 5; ++i) {
      const double p = weights[i] / 8;
      CHECK(std::abs(first[i] / rows - p) < 0.012);  // five standard deviations
      for (int j = 0; j < 5; ++j)
        CHECK(std::abs(both[i][j] / rows - (i == j ? 0 : p * weights[j] / 8 / (1 - p))) < 0.012);
    }
    CHECK(first[3] == 0);
  };
  check(float{});
  check(double{});
  check(bfloat16{});
  check(std::int32_t{});
  CHECK(eval(multinomial<5>(from(extents<5>{}, weights))).to_vector().back() == 3);  // none other is left
  CHECK(eval(multinomial(from(extents<1>{}, std::vector<double>{1e-300}))).to_vector() ==
        std::vector<std::int64_t>{0});
  CHECK(eval(multinomial(zeros<float>(extents<dyn, 3>{0}))).extents() == shape{2, {0, 1}});
  const double infinity = std::numeric_limits<double>::infinity(),
               nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto& bad : {std::vector<double>{0, 0, 0},
                          {1, -0.5, 1},
                          {1, infinity, 1},
                          {1, nan, 1},
                          {-1, -2, -3},
                          {-1, -1, -1}})
    CHECK_THROWS_AS(eval(multinomial(from(extents<3>{}, bad))), value_error);
  const auto refused = [](std::vector<double> rows, const char* what) {
    CHECK_THROWS_WITH_AS(eval(multinomial(from(extents<2, 3>{}, rows))), what, value_error);
  };
  refused({3, 1, 2, 3, -1, 2}, "weft: multinomial: a weight of -1 at position 4 is negative");
  refused({3, 1, 2, 0, 0, 0}, "weft: multinomial: no weight of row 1 is above 0");
  refused({3, 1, 2, 0, infinity, 0}, "weft: multinomial: a weight of row 1 is infinite or NaN");
  CHECK_THROWS_WITH_AS(eval(multinomial<5>(ones<float>(extents<2, dyn>{2, 3}))),
                       "weft: multinomial: an operand of shape [2, 3]: 5 must be at most 3", shape_error);
}

TEST_CASE("multinomial: rare positions, weights of 0, and weights whose sum no number holds") {
  const bool all = std::getenv("WEFT_TEST_LARGE") != nullptr;
  if (all) {
    constexpr index_t tail = 20'000;
    const auto weights = eval(concat<0>(ones<float>(extents<1>{}), full<float>(extents<tail>{}, 3e-8f)));
    const auto each = eval(expand(unsqueeze<0>(weights), extents<2000, 1 + tail>{}));
    index_t rare = 0;
    for (int i = 0; i < 20; ++i) rare += eval(sum(cast<std::int64_t>(multinomial(each) > 0))).item();
    CHECK(rare > 5);  // 24 of 40'000 are expected
    CHECK(rare < 55);
  }
  const auto one = eval(expand(from(extents<1, 2>{}, std::vector<float>{0, 1}), extents<200'000, 2>{}));
  for (int i = 0; i < (all ? 1200 : 1); ++i)  // a uniform number that is rounded to 1 comes once in 2^25
    CHECK(eval(sum(cast<std::int64_t>(multinomial(one) == 0))).item() == 0);
  constexpr index_t rows = 2000;
  const auto large =
      eval(expand(from(extents<1, 3>{}, std::vector<float>{1e38f, 1e38f, 2e38f}), extents<rows, 3>{}));
  index_t drawn[3]{};
  for (const std::int64_t i : eval(multinomial(large)).to_vector()) ++drawn[i];
  CHECK(std::abs(drawn[0] - rows / 4) < 100);  // five standard deviations
  CHECK(std::abs(drawn[2] - rows / 2) < 115);
}

TEST_CASE("random: uniform and normal numbers of one key are independent") {
  constexpr index_t n = 10'000;
  const auto correlation = [](const std::vector<float>& a, const std::vector<float>& b) {
    double sums[5]{};
    const auto count = static_cast<double>(std::min(a.size(), b.size()));
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      const double x = a[i], y = b[i], terms[] = {x, y, x * x, y * y, x * y};
      for (int k = 0; k < 5; ++k) sums[k] += terms[k] / count;
    }
    return (sums[4] - sums[0] * sums[1]) /
           std::sqrt((sums[2] - sums[0] * sums[0]) * (sums[3] - sums[1] * sums[1]));
  };
  const auto uniform = rand<float>(extents<n>{}, {.seed = 5});
  const auto normal = randn<float>(extents<n>{}, {.seed = 5});
  const auto even = eval(slice<0, 0, n, 2>(uniform)).to_vector(),
             odd = eval(slice<0, 1, n, 2>(uniform)).to_vector();
  const auto centred = eval(abs(slice<0, 1, n, 2>(uniform) - 0.5f)).to_vector();
  for (const auto& u : {uniform.to_vector(), even, odd, centred})
    for (const auto& z : {normal.to_vector(), eval(abs(normal)).to_vector()})
      CHECK(std::abs(correlation(u, z)) < 0.07);  // five standard deviations
}
