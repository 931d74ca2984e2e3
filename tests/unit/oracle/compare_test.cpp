// SPDX-License-Identifier: MIT
// The comparator fails when it should.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include <weft/tensor/create.hpp>

#include "../../compare.hpp"

using namespace weft;
using test::matches;
namespace oracle = test::oracle;

namespace {
constexpr double inf = std::numeric_limits<double>::infinity(),
                 NaN = std::numeric_limits<double>::quiet_NaN();
oracle::array row(std::vector<double> v, dtype t = dtype::f32) {
  const shape s{1, {static_cast<index_t>(v.size())}};
  return oracle::numbers(t, s, std::move(v));
}
}  // namespace

TEST_CASE("a result that is NaN throughout matches nothing but NaN") {
  CHECK_FALSE(matches(row({NaN, NaN}), row({1, 2}), {.absolute = 1e30}));
  CHECK_FALSE(matches(row({1, 2}), row({NaN, NaN}), {.absolute = 1e30}));
  CHECK_FALSE(matches(row({1, NaN}), row({1, 2}), {.of_largest = 10}));
  CHECK(matches(row({NaN, 2}), row({NaN, 2})));
}

TEST_CASE("infinities stand in the same places with the same sign") {
  CHECK(matches(row({inf, -inf}), row({inf, -inf}), {.relative = 0.1}));
  CHECK_FALSE(matches(row({inf, inf}), row({inf, -inf}), {.relative = 0.1}));
  CHECK_FALSE(matches(row({3e38, 1}), row({inf, 1}), {.relative = 0.1}));
  CHECK_FALSE(matches(row({inf, 1}), row({3e38, 1}), {.relative = 0.1}));
  CHECK_FALSE(matches(row({NaN}), row({inf})));
  CHECK_FALSE(matches(row({inf}), row({NaN})));
}

TEST_CASE("the bound is the one that was asked for") {
  CHECK_FALSE(matches(row({1.01}, dtype::f64), row({1}, dtype::f64)));
  CHECK(matches(row({1.01}, dtype::f64), row({1}, dtype::f64), {.absolute = 0.011}));
  CHECK_FALSE(matches(row({1.01}, dtype::f64), row({1}, dtype::f64), {.absolute = 0.009}));
  CHECK(matches(row({101, 1}), row({100, 1}), {.relative = 0.011}));
  CHECK_FALSE(matches(row({100, 1.02}), row({100, 1}), {.relative = 0.011}));
  CHECK(matches(row({100, 1.02}), row({100, 1}), {.of_largest = 0.011}));
  CHECK_FALSE(matches(row({1, 1}), row({inf, 2}), {.of_largest = 1}));
  CHECK(matches(row({1, 2}), row({1.5, 2}), {.slack = {0.6, 0}}));
  CHECK_FALSE(matches(row({1.5, 3}), row({1.5, 2}), {.slack = {2, 0}}));
}

TEST_CASE("a bound that is no number, or infinite, is met by nothing") {
  CHECK_FALSE(matches(row({1}), row({1}), {.absolute = NaN}));
  CHECK_FALSE(matches(row({1}), row({1}), {.absolute = inf}));
  CHECK_FALSE(matches(row({1}), row({1}), {.slack = {inf}}));
  CHECK_FALSE(matches(row({1, 2}), row({1, 2}), {.slack = {1}}));
}

TEST_CASE("types, shapes, numbers of elements") {
  CHECK_FALSE(matches(row({1}), row({1}, dtype::f64)));
  CHECK_FALSE(matches(oracle::numbers(dtype::f32, {2, {1, 2}}, {1, 2}),
                      oracle::numbers(dtype::f32, {2, {2, 1}}, {1, 2})));
  CHECK_FALSE(matches(oracle::numbers(dtype::f32, {}, {1}), row({1})));
  CHECK_FALSE(matches(oracle::zeros(dtype::f32, {2, {0, 3}}), oracle::zeros(dtype::f32, {2, {3, 0}})));
  CHECK(matches(oracle::zeros(dtype::f32, {2, {0, 3}}), oracle::zeros(dtype::f32, {2, {0, 3}})));
  CHECK_FALSE(matches(std::vector<float>{1, 2}, std::vector<float>{1, 2, 3}));
}

TEST_CASE("integers are equal, bytes of bool are 0 or 1") {
  const auto big = std::int64_t{1} << 60;
  CHECK_FALSE(matches(oracle::integers(dtype::i64, {}, {big + 1}), oracle::integers(dtype::i64, {}, {big}),
                      {.absolute = 1e30, .relative = 1}));
  const tensor<bool, extents<2>> t(shape{1, {2}});
  const std::uint8_t bytes[] = {1, 255};
  t.state()->where->upload(t.state()->memory.data(), bytes, 2);
  CHECK_FALSE(matches(t, oracle::integers(dtype::boolean, {1, {2}}, {1, 1})));
}

TEST_CASE("tensors: one that is not there, elements rounded to their type") {
  CHECK_FALSE(matches(tensor<float, extents<1>>(), row({1})));
  CHECK(matches(full<float>(extents<1>{}, 0.1f), row({0.1})));
  CHECK(matches(full<float>(extents<1>{}, std::numeric_limits<float>::infinity()), row({1e39})));
  CHECK(matches(full<bfloat16>(extents<1>{}, bfloat16(0.1f)), row({0.1}, dtype::bf16)));
}

TEST_CASE("a derivative that is not known matches nothing") {
  const oracle::derivative known{row({2, 3}), row({1e-9, 0})}, unknown{row({2, 3}), row({0.5, 0})},
      none{row({2, NaN}), row({0, inf})};
  const auto t = from(extents<2>{}, std::vector<float>{2, 3});
  CHECK(matches(t, known));
  CHECK_FALSE(matches(t, unknown, {.absolute = 1}));
  CHECK_FALSE(matches(t, none, {.absolute = 1}));
}

TEST_CASE("the first element that differs is named") {
  const auto c = matches(oracle::numbers(dtype::f32, {2, {2, 3}}, {0, 1, 2, 3, 4, 5}),
                         oracle::numbers(dtype::f32, {2, {2, 3}}, {0, 1, 2, 3, 5, 6}), {.relative = 0.1});
  CHECK(c.difference() == "element [1, 1] of [2, 3]: 4, expected 5 within 0.5");
}

TEST_CASE("a distance that is no number is infinite") {
  using test::largest_relative_difference;
  CHECK(largest_relative_difference({1, 2.5}, {1, 2}) == 0.25);
  CHECK(largest_relative_difference({0, 1}, {0, 1}) == 0);
  CHECK(largest_relative_difference({1}, {0}) == inf);
  CHECK(largest_relative_difference({NaN}, {1}) == inf);
  CHECK(largest_relative_difference({1}, {NaN}) == inf);
  CHECK(largest_relative_difference({1}, {1, 2}) == inf);
  using test::largest_difference;
  CHECK(largest_difference({1, 2.5}, {1, 1.5}) == 0.4);
  CHECK(largest_difference<float>({0.5f}, {0}) == 0.5);
  CHECK(largest_difference<float>({}, {}) == 0);
  CHECK(largest_difference({0, NaN}, {0, 1}) == inf);
  CHECK(largest_difference({0, 1}, {0, NaN}) == inf);
  CHECK(largest_difference({inf}, {inf}) == inf);
  CHECK(largest_difference({1}, {1, 2}) == inf);
}
