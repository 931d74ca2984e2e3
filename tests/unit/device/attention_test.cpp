// SPDX-License-Identifier: MIT
// Attention in blocks gives what its definition gives, with its gradients, at sizes that fill no block.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <weft/weft.hpp>

#include "../../compare.hpp"

using namespace weft;
using test::matches;
namespace oracle = test::oracle;

namespace {

template <class T>
using heads = variable<T, extents<dyn, dyn, dyn, dyn>>;

/// The cotangents of q, k and v for that of the result, by the formula of softmax's derivative.
std::array<oracle::array, 3> cotangents(bool hides, const std::array<oracle::array, 3>& of,
                                        const oracle::array& g) {
  const auto& [q, k, v] = of;
  const shape& s = q.extents;
  const index_t positions = s[1], features = s[3];
  const double scale = 1 / std::sqrt(static_cast<double>(features));
  std::array<oracle::array, 3> d{oracle::zeros(q.type, s), oracle::zeros(q.type, s),
                                 oracle::zeros(q.type, s)};
  for (index_t b = 0; b < s[0]; ++b)
    for (index_t h = 0; h < s[2]; ++h)
      for (index_t i = 0; i < positions; ++i) {
        const auto at = [&](index_t t, index_t f) {
          return static_cast<std::size_t>(((b * positions + t) * s[2] + h) * features + f);
        };
        const auto product = [&](const oracle::array& x, const oracle::array& y, index_t j) {
          double total = 0;
          for (index_t f = 0; f < features; ++f) total += x.f[at(i, f)] * y.f[at(j, f)];
          return total;
        };
        const index_t seen = hides ? i + 1 : positions;
        std::vector<double> weight, slope;
        double sum = 0, mean = 0, top = -std::numeric_limits<double>::infinity();
        for (index_t j = 0; j < seen; ++j) top = std::max(top, product(q, k, j) * scale);
        for (index_t j = 0; j < seen; ++j)
          sum += weight.emplace_back(std::exp(product(q, k, j) * scale - top));
        for (index_t j = 0; j < seen; ++j)
          mean += (weight[static_cast<std::size_t>(j)] /= sum) * slope.emplace_back(product(g, v, j));
        for (index_t j = 0; j < seen; ++j) {
          const double w = weight[static_cast<std::size_t>(j)],
                       of_score = w * (slope[static_cast<std::size_t>(j)] - mean) * scale;
          for (index_t f = 0; f < features; ++f) {
            d[0].f[at(i, f)] += of_score * k.f[at(j, f)];
            d[1].f[at(j, f)] += of_score * q.f[at(i, f)];
            d[2].f[at(j, f)] += w * g.f[at(i, f)];
          }
        }
      }
  return d;
}

template <class T>
heads<T> drawn(index_t positions, index_t features, std::uint64_t seed) {
  return heads<T>(randn<T>(extents<dyn, dyn, dyn, dyn>{2, positions, 3, features}, {.seed = seed}));
}

template <class T, bool Causal>
void compare(index_t positions, index_t features, double tolerance) {
  CAPTURE(positions); CAPTURE(features); CAPTURE(Causal);
  heads<T> of[] = {drawn<T>(positions, features, 1), drawn<T>(positions, features, 2),
                   drawn<T>(positions, features, 3)};
  const auto weight = drawn<T>(positions, features, 4);
  const auto y = attention<Causal>(of[0], of[1], of[2]);
  CHECK(matches(eval(y), oracle::value(y), {.of_largest = tolerance}));
  tape steps;
  steps.backward(steps.eval(sum(y * weight)));
  const auto expected = cotangents(Causal, {oracle::read(of[0]), oracle::read(of[1]), oracle::read(of[2])},
                                   oracle::read(weight));
  for (std::size_t i = 0; i < 3; ++i) {
    CAPTURE(i);
    CHECK(matches(of[i].grad(), expected[i], {.of_largest = tolerance}));
  }
}

}  // namespace

TEST_CASE("the formula of cotangents agrees with difference quotients") {
  const auto check = [](auto causal_or_not) {
    constexpr bool hides = decltype(causal_or_not)::value;
    const heads<double> of[] = {drawn<double>(4, 3, 1), drawn<double>(4, 3, 2), drawn<double>(4, 3, 3)};
    const auto weight = oracle::read(drawn<double>(4, 3, 4));
    const auto d = cotangents(hides, {oracle::read(of[0]), oracle::read(of[1]), oracle::read(of[2])}, weight);
    for (std::size_t i = 0; i < 3; ++i)
      CHECK(matches(d[i], oracle::gradient(attention<hides>(of[0], of[1], of[2]), of[i], weight).value,
                    {.of_largest = 1e-9}));
  };
  check(std::true_type{});
  check(std::false_type{});
}

TEST_CASE("attention in blocks is attention") {
  constexpr std::pair<index_t, index_t> sizes[] = {{1, 1}, {7, 3}, {64, 16}, {65, 20}, {130, 33}, {200, 64}};
  for (const auto& [positions, features] : sizes) {
    compare<float, true>(positions, features, 1e-5);
    compare<float, false>(positions, features, 1e-5);
    compare<double, true>(positions, features, 1e-13);
    compare<double, false>(positions, features, 1e-13);
  }
}

TEST_CASE("scores that are large, equal or not numbers") {
  const auto ones = full<float>(extents<1, 70, 1, 8>{}, 100.0f);  // all scores 28284, beyond exp
  const auto y = eval(attention<causal>(ones, ones, ones));
  for (float e : y.to_vector()) CHECK(e == doctest::Approx(100));
  auto bad = generate<float>(extents<1, 70, 1, 8>{}, [](index_t i) { return i == 40 * 8 ? NAN : 0.5f; });
  const auto z = eval(attention<causal>(bad, ones, ones)).to_vector();  // query 40
  for (std::size_t i = 0; i < z.size(); ++i) CHECK(std::isnan(z[i]) == (i / 8 == 40));
}
