// SPDX-License-Identifier: MIT
// update of views changes exactly their elements. The oracle determines a view's elements, from a tensor of
// indices.
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include <weft/weft.hpp>

#include "../../compare.hpp"
#include "../../throws_with.hpp"

using namespace weft;
using namespace weft::test;

namespace {

/// Sets element `k` of `a` to element `at` of `values`.
void set(oracle::array& a, index_t k, const oracle::array& values, index_t at) {
  const auto to = static_cast<std::size_t>(k), from = static_cast<std::size_t>(at);
  if (a.floating()) a.f[to] = values.f[from];
  else a.i[to] = values.i[from];
}

/// Assigns a tensor, an expression of x itself, and a number to `view(x)`.
template <element T, class Extents, class F>
void check(const Extents& extents, F view) {
  auto x = generate<T>(extents, [](index_t i) { return static_cast<T>(static_cast<float>(i % 11)); });
  const auto places = oracle::value(view(generate<std::int64_t>(extents, [](index_t i) { return i; })));
  oracle::array expected = oracle::read(x);
  const auto expect = [&](const oracle::array& values) {
    for (index_t k = 0; k < places.size(); ++k)
      set(expected, places.i[static_cast<std::size_t>(k)], values, values.size() == 1 ? 0 : k);
    CHECK(matches(x, expected));
  };

  const auto part = view(x);
  const auto values = eval(where(part == part, part + full<T>(weft::extents<>{}, T(1)), part));
  update(view(x), values);
  expect(oracle::read(values));

  const auto before = view(x);
  const auto sums = oracle::value(before + values);
  update(before, before + values);
  expect(sums);

  const auto version = x.state()->version();
  update(view(x), 3);
  expect(oracle::read(full<T>(weft::extents<>{}, static_cast<T>(3))));
  CHECK(x.state()->version() > version);
}

/// Views of a tensor [3, 4, 5].
template <element T>
void check_some_views(const auto& e) {
  check<T>(e, [](auto x) { return x[0][1]; });
  check<T>(e, [](auto x) { return slice<1, 1, 3>(x); });
  check<T>(e, [](auto x) { return slice<0>(x, 1, 3); });
  check<T>(e, [](auto x) { return flip<2>(slice<2, 1, 4>(transpose<0, 1>(x))); });
  check<T>(e, [](auto x) { return flatten<1, 2>(x); });
}
/// More views, and views of views.
template <element T>
void check_views(const auto& e) {
  check_some_views<T>(e);
  check<T>(e, [](auto x) { return x[-1]; });
  check<T>(e, [](auto x) { return x[2][3][4]; });
  check<T>(e, [](auto x) { return select<1>(x, 1); });
  check<T>(e, [](auto x) { return select<2, 4>(x); });
  check<T>(e, [](auto x) { return slice<2, 0, 5, 2>(x); });
  check<T>(e, [](auto x) { return slice<0>(x, 2, 2); });
  check<T>(e, [](auto x) { return transpose(x); });
  check<T>(e, [](auto x) { return permute<2, 0, 1>(x); });
  check<T>(e, [](auto x) { return flip<1>(x); });
  check<T>(e, [](auto x) { return transpose(flip<0>(x[1])); });
  check<T>(e, [](auto x) { return slice<0, 0, 3, 2>(slice<1, 1, 4, 2>(flip<0>(x))); });
  check<T>(e, [](auto x) { return unsqueeze<1>(chunk<2, 5, 3>(x)); });
  check<T>(e, [](auto x) { return unflatten<1, 2>(flip<2>(x)); });
  check<T>(e, [](auto x) { return let(x[1], [](auto row) { return row[2]; }); });
  check<T>(e, [](auto x) { return detach(x); });
}

}  // namespace

TEST_CASE("update of a view sets its elements and no others") {
  check_views<float>(extents<dyn, dyn, dyn>{3, 4, 5});
  check_some_views<float>(extents<3, 4, 5>{});
  check_some_views<bfloat16>(extents<3, dyn, 5>{4});
}

TEST_CASE_TEMPLATE("update of a view, of every element type", T, double, float16, std::int64_t, std::int32_t,
                   std::uint8_t, bool) {
  const extents<dyn, 3, 2> e{5};
  check<T>(e, [](auto x) { return slice<0>(x, 1, 4); });
  check<T>(e, [](auto x) { return transpose(select<2>(x, 1)); });
  check<T>(e, [](auto x) { return flip<1>(x); });
}

TEST_CASE("update of a view: the value broadcasts") {
  auto x = zeros<float>(extents<2, 3>{});
  update(transpose(x), from(extents<2>{}, {1.0f, 2.0f}));  // [3, 2] <- [2]
  CHECK(x.to_vector() == std::vector<float>{1, 1, 1, 2, 2, 2});
  update(slice<1, 1, 3>(x), from(extents<2, 1>{}, {5.0f, 6.0f}));
  CHECK(x.to_vector() == std::vector<float>{1, 5, 5, 2, 6, 6});
  update(x[1], from(extents<1, 1, 3>{}, {7.0f, 8.0f, 9.0f}));  // leading dims of extent 1
  CHECK(x.to_vector() == std::vector<float>{1, 5, 5, 7, 8, 9});
  update(x, 0.5);
  CHECK(x.to_vector() == std::vector<float>(6, 0.5f));
  auto none = zeros<float>(extents<dyn, 3>{0});
  update(none, 1);
  update(slice<1, 1, 3>(none), 1);
}

TEST_CASE("update of a view: all is computed from the old elements") {
  auto x = arange<float>(6);
  update(slice<0, 1, 6>(x), slice<0, 0, 5>(x));  // overlaps
  CHECK(x.to_vector() == std::vector<float>{0, 0, 1, 2, 3, 4});
  update(flip<0>(x), x);
  CHECK(x.to_vector() == std::vector<float>{4, 3, 2, 1, 0, 0});
  auto m = from(extents<2, 2>{}, {1.0f, 2.0f, 3.0f, 4.0f});
  update(transpose(m), m);
  CHECK(m.to_vector() == std::vector<float>{1, 3, 2, 4});
  update(m[0], m[0] + m[1]);
  CHECK(m.to_vector() == std::vector<float>{3, 7, 2, 4});
}

TEST_CASE("update of a view: what was written before is noticed, and what does not fit changes nothing") {
  variable<float, extents<dyn, 3>> w(ones<float>(extents<dyn, 3>{2}));
  tape steps;
  auto loss = steps.eval(sum(square(w)));
  const auto old = w * 2;
  update(w[0], 4);
  CHECK_THROWS_AS(eval(old), value_error);
  CHECK_THROWS_AS(steps.backward(loss), value_error);

  const auto before = w.to_vector();
  tensor<float, extents<dyn>> two(ones<float>(extents<2>{}));
  CHECK(throws_with<shape_error>([&] { update(w[0], two); }, {"update", "[2]", "[3]"}));
  tensor<float, extents<dyn>> one(ones<float>(extents<1>{}));  // repeated only where the type says 1
  CHECK(throws_with<shape_error>([&] { update(w[0], one); }, {"update", "[1]", "[3]"}));
  CHECK_THROWS_AS(update(slice<0>(w, 1, 3), ones<float>(extents<3>{})), shape_error);
  CHECK_THROWS_AS(update(w[2], 0), value_error);
  CHECK(w.to_vector() == before);
  const auto row = w[0];
  update(row, 4);
  update(row, 5);  // a target is a place, independent of its old elements
  CHECK(w(0, 2) == 5);
  const device elsewhere(std::make_shared<cpu::cpu_backend>(1));
  context other(elsewhere);
  CHECK_THROWS_AS(update(w[0], ones<float>(extents<3>{}, elsewhere), other), device_error);
}
