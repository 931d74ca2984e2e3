// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <random>
#include <vector>

#include <weft/shape/extents.hpp>
#include <weft/shape/laws.hpp>
#include <weft/shape/layout.hpp>

using namespace weft;

static_assert(extents<dyn, 784>{32}[0] == 32 && extents<dyn, 784>{32, 784}[1] == 784);
static_assert([] {
  static_dims d;
  return broadcast(d, {2, {32, 1}}, {1, {784}}).value.extents == shape{2, {32, 784}};
}());
static_assert([] {
  static_dims d;
  return !broadcast(d, {1, {3}}, {1, {4}}).holds && broadcast(d, {1, {dyn}}, {1, {4}}).value.extents[0] == 4;
}());

TEST_CASE("extents: a number that is not the static one is an error that says which dim") {
  CHECK_THROWS_WITH_AS((extents<dyn, 784>{32, 785}), "weft: extents [?, 784]: dim 1 cannot be 785",
                       shape_error);
  CHECK_THROWS_AS((extents<dyn>{-1}), shape_error);
}

namespace {
template <class S>
concept from_numbers = requires { S{2, 7}; };
static_assert(!from_numbers<shape>);  // would be 2 dims of extents 7 and 0
}  // namespace

TEST_CASE("shape: extents in braces, as many as dims at most") {
  static_assert(shape{2, {3, 4}} == [] {
    shape s;
    s.append(3);
    s.append(4);
    return s;
  }());
  CHECK(shape{2, {3}} == shape{2, {3, 0}});
  for (const int dims : {-1, 0, 1, max_order + 1})
    CHECK_THROWS_WITH_AS((shape{dims, {3, 4}}), doctest::Contains("dims with 2 extents"), shape_error);
}

TEST_CASE("symbols: unifying two emits one check and makes them one") {
  symbol_table t;
  const index_t a = t.leaf_extent(0, 0), b = t.leaf_extent(1, 0);
  index_t out = 0;
  CHECK(t.unify(a, b, out));
  CHECK(t.canonical(a) == t.canonical(b));
  CHECK(t.unify(b, a, out));
  CHECK(t.checks.size() == 1);
  CHECK(t.unify(b, 7, out));
  CHECK(t.canonical(a) == 7);
  CHECK_FALSE(t.unify(a, 8, out));
}

TEST_CASE("symbols: products and quotients meet again") {
  symbol_table t;
  const index_t b = t.leaf_extent(0, 0), c = t.leaf_extent(0, 1);
  CHECK(t.multiply(t.divide(c, 4), 4) == c);
  CHECK(t.divide(t.multiply(b, c), c) == b);
  CHECK(t.multiply(t.multiply(b, 3), 5) == t.multiply(b, 15));
  CHECK(t.add(t.multiply(b, 2), b) == t.multiply(b, 3));
  CHECK(t.subtract(t.multiply(b, 3), b) == t.multiply(b, 2));
  CHECK(t.multiply(b, 0) == 0);
}

TEST_CASE(
    "symbols: numbers of a sum are collected, whichever side they are on, and found from what is known") {
  symbol_table t;
  const index_t x = t.leaf_extent(0, 0), y = t.leaf_extent(1, 0);
  index_t out = 0;
  CHECK(t.add(2, x) == t.add(x, 2));
  CHECK(t.add(t.add(2, x), 3) == t.add(x, 5));
  CHECK(t.subtract(t.add(x, 5), 2) == t.add(x, 3));
  CHECK(t.add(x, y) == t.add(y, x));
  const index_t sum = t.add(x, y), half = t.divide_up(y, 2);
  CHECK(t.unify(t.add(t.add(1, x), 1), 5, out));  // concat of a row of unknown extent to one of 2, equal to 5
  CHECK(t.canonical(x) == 3);
  CHECK(t.unify(sum, 10, out));  // y = 10 - x
  CHECK(t.canonical(y) == 7);
  CHECK(t.canonical(half) == 4);
  CHECK_FALSE(t.unify(half, 5, out));
}

// Every extent has a value. Formulas are built and extents of equal values are unified, in any order: no
// conclusion is wrong, even if extents are 0 or 1.
TEST_CASE("symbols: conclusions from random equations hold for the values that solve them") {
  for (unsigned seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    symbol_table t;
    std::vector<std::pair<index_t, index_t>> known;  // extents and their values
    for (index_t leaf = 0; leaf < 4; ++leaf)
      known.emplace_back(t.leaf_extent(leaf, 0), static_cast<index_t>(below(4)));
    for (index_t n = 0; n < 4; ++n) known.emplace_back(n, n);
    for (int step = 0; step < 40; ++step) {
      const auto [a, x] = known[below(known.size())];
      const auto [b, y] = known[below(known.size())];
      index_t out = 0;
      switch (below(6)) {
        case 0: known.emplace_back(t.add(a, b), x + y); break;
        case 1:
          if (x >= y && !(a >= 0 && t.canonical(b) > a)) known.emplace_back(t.subtract(a, b), x - y);
          break;
        case 2:
          if (x * y < 1000) known.emplace_back(t.multiply(a, b), x * y);
          break;
        case 3:
          if (y > 0 && x % y == 0) known.emplace_back(t.divide(a, b), x / y);
          break;
        case 4:
          if (y > 0) known.emplace_back(t.divide_up(a, b), (x + y - 1) / y);
          break;
        default:
          if (x == y) REQUIRE(t.unify(a, b, out));
      }
      for (const auto& [extent, value] : known)
        if (const index_t number = t.canonical(extent); number >= 0) REQUIRE(number == value);
      for (const auto& [extent, value] : known)
        for (const auto& [other, its] : known)
          if (t.canonical(extent) == t.canonical(other)) REQUIRE(value == its);
    }
  }
}

TEST_CASE("reshape: equal ends are set aside, so that heads divide features alone") {
  symbol_table t;
  const index_t b = t.leaf_extent(0, 0), c = t.leaf_extent(0, 1);
  const inferred r = reshaped(t, {2, {b, c}}, {3, {b, 4, dyn}});
  CHECK(r.holds);
  CHECK(r.value.extents[2] == t.divide(c, 4));
  static_dims s;
  CHECK_FALSE(reshaped(s, {1, {10}}, {2, {3, dyn}}).holds);
}

TEST_CASE("symbols: the older of two that are unified stands for both, so formulas never go in circles") {
  symbol_table dims;
  const index_t x = dims.leaf_extent(0, 0), y = dims.leaf_extent(1, 0);
  const index_t rest = dims.subtract(dims.add(x, y), y);  // x, written differently
  index_t both = 0;
  CHECK(dims.unify(rest, x, both));
  CHECK(both == x);
  CHECK(dims.canonical(rest) == x);
  CHECK(dims.canonical(x) == x);
}

TEST_CASE("symbols: sums and products of numbers that do not fit into 64 bits are errors") {
  symbol_table t;
  const index_t x = t.leaf_extent(0, 0), big = index_t{1} << 40, most = ~(index_t{1} << 63);
  CHECK_THROWS_WITH_AS(t.multiply(t.multiply(x, big), big), doctest::Contains("product of extents"),
                       shape_error);
  CHECK_THROWS_WITH_AS(t.add(most, 1), doctest::Contains("sum of extents"), shape_error);
  CHECK_THROWS_WITH_AS(t.add(t.add(x, most), 1), doctest::Contains("sum of extents"), shape_error);
  CHECK_THROWS_WITH_AS(t.add(t.multiply(x, most), x), doctest::Contains("sum of extents"), shape_error);
  index_t out = 0;  // a formula whose value no number holds leads to no conclusion
  const index_t y = t.leaf_extent(1, 0), sum = t.add(y, most);
  CHECK(t.unify(y, 2, out));
  CHECK(t.canonical(sum) == sum);
  static_dims d;
  CHECK(d.add(most, 1) == dyn);
}

TEST_CASE("layout: dims in opposite directions overlap like those in one") {
  const auto distinct = [](index_t a, index_t b) {
    return has_distinct_elements({{2, {3, 3}}, {{a, 1}, {b, 1}}, 8});
  };
  CHECK(distinct(3, 1));
  CHECK(distinct(-3, 1));
  CHECK(distinct(3, -1));
  CHECK_FALSE(distinct(1, -1));
  CHECK_FALSE(distinct(-1, 1));
  CHECK_FALSE(distinct(-2, -1));
}
