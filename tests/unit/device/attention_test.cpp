// SPDX-License-Identifier: MIT
// Attention in blocks, with its gradients, matches its definition at sizes that fill no block.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include <weft/weft.hpp>

#include "../../attention.hpp"
#include "../../compare.hpp"

using namespace weft;
using test::cotangents;
using test::matches;
namespace oracle = test::oracle;

namespace {

template <class T>
using heads = variable<T, extents<dyn, dyn, dyn, dyn>>;

/// Extents of queries, keys and values; the position of the first query.
struct sizes {
  index_t queries, keys, heads, key_heads, features, first;
};
constexpr sizes alike(index_t positions, index_t features) {
  return {positions, positions, 3, 3, features, 0};
}

template <class T>
heads<T> drawn(index_t positions, index_t count, index_t features, std::uint64_t seed) {
  return heads<T>(randn<T>(extents<dyn, dyn, dyn, dyn>{2, positions, count, features}, {.seed = seed}));
}
template <class T>
std::array<heads<T>, 4> drawn(const sizes& n) {
  return {drawn<T>(n.queries, n.heads, n.features, 1), drawn<T>(n.keys, n.key_heads, n.features, 2),
          drawn<T>(n.keys, n.key_heads, n.features, 3), drawn<T>(n.queries, n.heads, n.features, 4)};
}

template <bool Causal, class T>
auto attended(const std::array<heads<T>, 4>& of, index_t first) {
  if constexpr (Causal) return attention<causal>(of[0], of[1], of[2], first);
  else return attention<false>(of[0], of[1], of[2]);
}

template <class T, bool Causal>
void compare(const sizes& n, double tolerance) {
  CAPTURE(n.queries);
  CAPTURE(n.keys);
  CAPTURE(n.heads);
  CAPTURE(n.features);
  CAPTURE(Causal);
  const std::array<heads<T>, 4> of = drawn<T>(n);
  const auto y = attended<Causal>(of, n.first);
  CHECK(matches(eval(y), oracle::value(y), {.of_largest = tolerance}));
  tape steps;
  steps.backward(steps.eval(sum(y * of[3])));
  const auto expected = cotangents(
      Causal, n.first, {oracle::read(of[0]), oracle::read(of[1]), oracle::read(of[2])}, oracle::read(of[3]));
  for (std::size_t i = 0; i < 3; ++i) {
    CAPTURE(i);
    CHECK(matches(of[i].grad(), expected[i], {.of_largest = tolerance}));
  }
}
void compare_all(const sizes& n) {
  compare<float, true>(n, 1e-5);
  compare<float, false>(n, 1e-5);
  compare<double, true>(n, 1e-13);
  compare<double, false>(n, 1e-13);
  compare<bfloat16, true>(n, 1e-2);
  compare<float16, false>(n, 2e-3);
}

}  // namespace

TEST_CASE("the formula of cotangents agrees with difference quotients") {
  const auto check = [](auto causal_or_not, const sizes& n) {
    constexpr bool hides = decltype(causal_or_not)::value;
    const auto of = drawn<double>(n);
    const auto weight = oracle::read(of[3]);
    const auto d =
        cotangents(hides, n.first, {oracle::read(of[0]), oracle::read(of[1]), oracle::read(of[2])}, weight);
    for (std::size_t i = 0; i < 3; ++i)
      CHECK(matches(d[i], oracle::gradient(attended<hides>(of, n.first), of[i], weight).value,
                    {.of_largest = 1e-9}));
  };
  for (const sizes& n : {alike(4, 3), sizes{2, 5, 4, 2, 3, 3}, sizes{5, 2, 2, 1, 3, 0}}) {
    check(std::true_type{}, n);
    check(std::false_type{}, n);
  }
}

TEST_CASE("attention in blocks is attention") {
  for (const sizes& n :
       {alike(1, 1), alike(7, 3), alike(64, 16), alike(65, 20), alike(130, 33), alike(200, 64)})
    compare_all(n);
}

TEST_CASE("queries and keys of other lengths and numbers of heads, queries at later positions") {
  for (const sizes& n :
       {sizes{1, 200, 2, 2, 16, 199}, sizes{3, 131, 6, 2, 7, 128}, sizes{130, 5, 2, 1, 8, 0},
        sizes{70, 200, 4, 2, 20, 100}, sizes{65, 140, 3, 1, 9, 13}, sizes{9, 66, 2, 2, 4, 500}})
    compare_all(n);
}

TEST_CASE("no keys, and shapes that do not fit") {
  const auto q = drawn<float>(3, 4, 5, 1), none = drawn<float>(0, 2, 5, 2), three = drawn<float>(3, 3, 5, 3);
  for (const float e : eval(attention<false>(q, none, none)).to_vector()) CHECK(e == 0);
  tape steps;
  steps.backward(steps.eval(sum(attention<causal>(q, none, none))));
  for (const float e : q.grad().to_vector()) CHECK(e == 0);
  CHECK_THROWS_WITH_AS(eval(attention<false>(q, three, three)),
                       doctest::Contains("attention: operands of shapes [2, 3, 4, 5], [2, 3, 3, 5]"),
                       shape_error);
  CHECK_THROWS_WITH_AS(attention<causal>(q, q, q, -1),
                       "weft: attention: the position of the first query must be 0 or more, not -1",
                       shape_error);
}

TEST_CASE("token by token with keys and values of earlier ones in a cache, as all at once") {
  using rows = extents<dyn, dyn, dyn, dyn>;
  const index_t positions = 75;
  const auto q = drawn<double>(positions, 6, 8, 1), k = drawn<double>(positions, 2, 8, 2),
             v = drawn<double>(positions, 2, 8, 3);
  const auto whole = eval(attention<causal>(q, k, v));
  tensor<double, rows> keys = eval(slice<1>(k, 0, 0)), values = eval(slice<1>(v, 0, 0));
  for (index_t t = 0, next = 0; t < positions; t = next) {
    next = t == 0 ? 66 : t + 1;  // a prompt, then one token each
    keys = eval(concat<1>(keys, slice<1>(k, t, next)));
    values = eval(concat<1>(values, slice<1>(v, t, next)));
    const auto y = eval(attention<causal>(slice<1>(q, t, next), keys, values, t));
    CHECK(matches(y, oracle::value(slice<1>(whole, t, next)), {.of_largest = 1e-14}));
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
