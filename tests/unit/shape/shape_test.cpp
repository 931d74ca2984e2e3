// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <weft/shape/extents.hpp>
#include <weft/shape/laws.hpp>

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
