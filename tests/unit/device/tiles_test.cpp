// SPDX-License-Identifier: MIT
// Element-wise kernels on transposed or reversed operands, or on short rows, are computed in tiles: at the
// borders of tiles, for every element type, with broadcast operands, on several threads.
#include <doctest/doctest.h>

#include <weft/weft.hpp>

#include "../../compare.hpp"

using namespace weft;
using weft::test::matches;
namespace oracle = weft::test::oracle;

namespace {

const device& threads() {
  static const device two(std::make_shared<cpu::cpu_backend>(2));
  return two;
}

/// Small integers that differ from their neighbors, exact in every type.
template <element T, index_t... E>
auto counted(extents<E...> s, index_t times = 7) {
  return generate<T>(
      s, [=](index_t i) { return static_cast<T>(static_cast<float>(i * times % 61)); }, threads());
}

/// Checks that an expression evaluates to the oracle's value.
template <expression X>
bool is_right(const X& e) {
  context c(threads());
  const auto result = matches(eval(e, c), oracle::value(e));
  if (!result) MESSAGE(result.difference());
  return static_cast<bool>(result);
}

template <element T>
void check_type() {
  for (const auto& [rows, columns] :
       {std::pair<index_t, index_t>{16, 16}, {37, 131}, {8, 300}, {61, 15}, {300, 17}, {260, 231}}) {
    CAPTURE(rows);
    CAPTURE(columns);
    const auto x = counted<T>(extents<dyn, dyn>{rows, columns});
    const auto y = counted<T>(extents<dyn, dyn>{columns, rows}, 5);
    const auto row = counted<T>(extents<dyn>{rows}), column = counted<T>(extents<dyn>{columns});
    CHECK(is_right(maximum(transpose(x), y)));
    CHECK(is_right(maximum(transpose(x), row)));
    CHECK(is_right(minimum(transpose(flip<0>(x)), unsqueeze<1>(column))));
    CHECK(is_right(maximum(flip<1>(x), transpose(y))));
  }
}

template <element T, index_t Size>
void check_short() {
  const auto x = counted<T>(extents<dyn, Size>{20011});
  const auto of_row = counted<T>(extents<dyn, 1>{20011}, 3);
  const auto of_column = counted<T>(extents<Size>{});
  CHECK(is_right(maximum(x, of_column)));
  CHECK(is_right(minimum(maximum(x, of_row), of_column)));
  CHECK(is_right(maximum(flip<1>(x), of_row)));
  CHECK(is_right(maximum(x, transpose(counted<T>(extents<Size, dyn>{20011}, 11)))));
  CHECK(is_right(concat<1>(maximum(x, of_row), x)));
  CHECK(is_right(maximum(slice<0>(x, 3, 10003), of_row[3])));
  CHECK(is_right(maximum(x, unsqueeze<1>(counted<T>(extents<5, Size>{}, 13)))));
}

}  // namespace

TEST_CASE("tiles: transposed operands of every type") {
  check_type<double>();
  check_type<float>();
  check_type<bfloat16>();
  check_type<float16>();
  check_type<std::int64_t>();
  check_type<std::int32_t>();
  check_type<std::uint8_t>();
  context c(threads());
  const auto others = eval(counted<std::int32_t>(extents<37, 131>{}) != 3, c);
  CHECK(is_right(logical_or(transpose(others), counted<std::int32_t>(extents<131, 37>{}) > 40)));
}

TEST_CASE("tiles: more transposed operands than a tile takes, and across several dims") {
  const auto of = [](index_t times) { return counted<float>(extents<dyn, 43>{140}, times); };
  const auto a = of(1), b = of(2), c = of(3), d = of(5), e = of(11);
  CHECK(is_right(transpose(a) * 2.0f + transpose(b) - transpose(c) * transpose(d) + transpose(e)));
  const auto t = counted<float>(extents<dyn, 19, 17, 21>{3});
  CHECK(is_right(permute<3, 2, 1, 0>(t) + 1.0f));
  CHECK(
      is_right(permute<0, 2, 3, 1>(t) + permute<0, 2, 3, 1>(counted<float>(extents<dyn, 19, 17, 21>{3}, 3))));
  CHECK(is_right(permute<2, 0, 3, 1>(t) * counted<float>(extents<19>{})));
  CHECK(is_right(permute<1, 0, 2, 3>(t) - permute<2, 1, 0>(counted<float>(extents<21, 17, dyn>{3}))));
  const auto across_0 = permute<2, 1, 0>(counted<float>(extents<21, 17, 19>{}));
  const auto across_1 = permute<0, 2, 1>(counted<float>(extents<19, 21, 17>{}, 3));
  CHECK(is_right(across_0 * 2.0f + across_1));
  CHECK(is_right(across_1 - across_0));
  CHECK(is_right(permute<0, 3, 1, 2>(slice<3, 2, 20>(t)) + flip<3>(permute<0, 3, 1, 2>(slice<3, 1, 19>(t)))));
}

TEST_CASE("tiles: results replace a transposed operand in place") {
  auto x = counted<float>(extents<40, 40>{});
  const auto expected = oracle::value(transpose(x) + 1.0f);
  const auto before = clone(x);
  context c(threads());
  update(x, transpose(x) + 1.0f, c);
  CHECK(matches(x, expected));
  const auto in_place = oracle::value(transpose(before) * 2.0f - x);
  update(x, transpose(before) * 2.0f - x, c);
  CHECK(matches(x, in_place));
}

TEST_CASE("tiles: short rows beside values of rows and of columns") {
  check_short<float, 2>();
  check_short<float, 3>();
  check_short<double, 4>();
  check_short<bfloat16, 3>();
  check_short<std::uint8_t, 5>();
  check_short<std::int64_t, 7>();
  check_short<float, 8>();
  check_short<std::int32_t, 9>();
  check_short<float, 15>();
  check_short<float, 16>();
}

TEST_CASE("tiles: short rows of a run-time extent, none, and values of rows that others read") {
  for (const index_t rows : {0, 1, 5, 700})
    for (const index_t size : {0, 1, 2, 7, 15}) {
      const auto x = counted<float>(extents<dyn, dyn>{rows, size});
      CHECK(is_right(x * unsqueeze<1>(counted<float>(extents<dyn>{rows}, 3)) +
                     counted<float>(extents<dyn>{size})));
    }
  CHECK(is_right(counted<float>(extents<50, 500, 3>{}) * counted<float>(extents<500, 1>{}, 3) +
                 counted<float>(extents<3>{})));
  const auto column = counted<float>(extents<dyn, 1>{40});
  CHECK(is_right(column - amax(column)));
  CHECK(is_right(reshape<dyn, 1, 1>(column) - sum(column)));
  CHECK(is_right(counted<float>(extents<40, 3, 1>{}) - amax(column)));
  const auto x = counted<float>(extents<dyn, 3>{211});
  const auto m = counted<float>(extents<dyn, 1>{211});
  const auto root = m * 0.5f + 1.0f;
  CHECK(is_right(x * root + square(root)));
  CHECK(is_right(concat<1>(x * root, root)));
  CHECK(is_right(sum(x * root, dims<1>) + sum(root)));
  CHECK(is_right(sum(x * root, dims<0>)));
}
