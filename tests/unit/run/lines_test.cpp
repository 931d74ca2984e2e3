// SPDX-License-Identifier: MIT
// Running sums and products, recurrences and indices of extrema along every dim, and maxima of windows match
// their definitions. The CPU computes groups of lines or windows at a time; the shapes here are close to the
// sizes of these groups.
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include <weft/weft.hpp>

#include "../../compare.hpp"

using namespace weft;
using test::matches;
namespace oracle = test::oracle;

namespace {

constexpr auto running_sum = []<index_t Dim>(auto x) { return cumsum<Dim>(x); };
constexpr auto running_product = []<index_t Dim>(auto x) { return cumprod<Dim>(x); };
constexpr auto sum_from_end = []<index_t Dim>(auto x) { return apply<op::cumsum, attr<Dim, 1>>(x); };
constexpr auto product_before = []<index_t Dim>(auto x) { return apply<op::cumprod, attr<Dim, 1>>(x); };
constexpr auto argmax_along = []<index_t Dim>(auto x) { return argmax<Dim>(x); };
constexpr auto argmin_along = []<index_t Dim>(auto x) { return argmin<Dim>(x); };
constexpr auto recurrence = []<index_t Dim>(auto x) {
  return apply<op::linear_recurrence, attr<Dim, 0>>(x * 0.4f, x + 1);
};
constexpr auto recurrence_from_end = []<index_t Dim>(auto x) {
  return apply<op::linear_recurrence, attr<Dim, 1>>(x * 0.4f, x + 1);
};

/// Checks f along each dim of x and of views of it.
template <index_t Dim = 0, expression X, class F>
void check(const char* what, X x, F f) {
  CAPTURE(what);
  CAPTURE(Dim);
  const auto same = [&](auto view) {
    const auto e = f.template operator()<Dim>(view);
    CHECK(matches(eval(e), oracle::value(e), {.relative = 1e-5, .of_largest = 1e-6}));
  };
  same(x);
  same(permute<2, 0, 1>(x));
  same(flip<2>(x));
  same(slice<1, 2>(x, 0, x.extent(1)));
  if constexpr (Dim < 2) check<Dim + 1>(what, x, f);
}

template <element T>
tensor<T, extents<dyn, dyn, dyn>> numbers(const extents<dyn, dyn, dyn>& shape) {
  return eval(cast<T>(round(randn<float>(shape, {.seed = 7}) * 40) / 20));
}

const extents<dyn, dyn, dyn> shapes[] = {{1, 1, 1},   {1, 1, 7},  {2, 63, 5},  {3, 2, 64}, {4, 65, 3},
                                         {2, 3, 129}, {5, 9, 66}, {127, 2, 1}, {8, 64, 64}};

}  // namespace

TEST_CASE("running sums and products, recurrences") {
  for (const auto& shape : shapes) {
    CAPTURE(shape);
    check("cumsum", numbers<float>(shape), running_sum);
    check("cumsum from the end", numbers<float>(shape), sum_from_end);
    check("cumprod", numbers<float>(shape), running_product);
    check("cumprod of those before", numbers<float>(shape), product_before);
    check("linear_recurrence", numbers<float>(shape), recurrence);
    check("linear_recurrence from the end", numbers<float>(shape), recurrence_from_end);
  }
  for (const auto& shape : {shapes[1], shapes[4], shapes[6]}) {
    CAPTURE(shape);
    check("f64", numbers<double>(shape), running_sum);
    check("bf16", numbers<bfloat16>(shape), sum_from_end);
    check("i32", numbers<std::int32_t>(shape), running_sum);
    check("u8", numbers<std::uint8_t>(shape), running_product);
  }
}

TEST_CASE("positions of the largest and the smallest elements, of several equal ones and of NaN") {
  for (const auto& shape : shapes) {
    CAPTURE(shape);
    const auto x = numbers<float>(shape);  // of 40 different numbers or so
    check("argmax", x, argmax_along);
    check("argmin", x, argmin_along);
    check("argmax of f64", numbers<double>(shape), argmax_along);
    check("argmin of i32", numbers<std::int32_t>(shape), argmin_along);
    check("argmax of bf16", numbers<bfloat16>(shape), argmax_along);
    for (const index_t some : {index_t{0}, x.size() / 2, x.size() - 1}) {  // and a second one behind it
      std::vector<float> elements(x.data(), x.data() + x.size());
      for (index_t i = some; i < std::min(some + 2, x.size()); ++i)
        elements[static_cast<std::size_t>(i)] = std::numeric_limits<float>::quiet_NaN();
      const auto y = from(shape, elements);
      check("argmax with NaN", y, argmax_along);
      check("argmin with NaN", y, argmin_along);
    }
  }
}

namespace {

template <height_width Size, pool_options O, element T>
void pool(const char* what, index_t rows, index_t columns, bool with_nan) {
  CAPTURE(what);
  CAPTURE(rows);
  CAPTURE(columns);
  const auto numbers_2 = numbers<T>(extents<dyn, dyn, dyn>{2, rows, columns});
  std::vector<T> elements(numbers_2.data(), numbers_2.data() + numbers_2.size());
  if constexpr (is_floating(dtype_of<T>))
    for (std::size_t i = 3; with_nan && i < elements.size(); i += 41)
      elements[i] = std::numeric_limits<T>::quiet_NaN();
  const auto x = from(extents<dyn, dyn, dyn>{2, rows, columns}, elements);
  const auto same = [](auto e) { CHECK(matches(eval(e), oracle::value(e))); };
  same(max_pool2d<Size, O>(x));
  same(max_pool2d<Size, O>(transpose<1, 2>(x)));
  const auto positions = eval(apply<op::arg_window_max, typename detail::pool_layout<Size, O>::of_maxima>(x));
  std::vector<std::int64_t> expected;
  const index_t step_down = O.stride.height ? O.stride.height : Size.height,
                step_across = O.stride.width ? O.stride.width : Size.width;
  for (index_t plane = 0; plane < 2; ++plane)
    for (index_t i = 0; i < positions.extent(1); ++i)
      for (index_t j = 0; j < positions.extent(2); ++j) {
        index_t best = -1;
        const auto at = [&](index_t p) {
          return elements[static_cast<std::size_t>(plane * rows * columns + p)];
        };
        for (index_t k = 0; k < Size.height; ++k)
          for (index_t l = 0; l < Size.width; ++l) {
            const index_t y = i * step_down + k - O.padding.height, z = j * step_across + l - O.padding.width;
            if (y < 0 || y >= rows || z < 0 || z >= columns) continue;
            const T v = at(y * columns + z);
            if (best < 0 || (at(best) == at(best) && !(v <= at(best))))
              best = y * columns + z;  // NaN is larger
          }
        expected.push_back(best);
      }
  CHECK(positions.to_vector() == expected);
}

}  // namespace

TEST_CASE("the largest elements of windows, at the border, of several equal ones and of NaN") {
  for (const index_t columns : {4, 5, 17, 63, 64, 65, 131, 200})
    for (const index_t rows : {index_t{4}, index_t{7}})
      for (const bool with_nan : {false, true}) {
        pool<2, pool_options{}, float>("2", rows, columns, with_nan);
        pool<3, pool_options{.stride = 2, .padding = 1}, float>("3, stride 2, padding 1", rows, columns,
                                                                with_nan);
        pool<4, pool_options{.stride = 1, .padding = 2}, float>("4, stride 1, padding 2", rows, columns,
                                                                with_nan);
        pool<3, pool_options{.stride = {3, 2}, .padding = {0, 1}, .ceil_mode = true}, float>(
            "3, to the end", rows, columns, with_nan);
        pool<3, pool_options{.stride = 2, .padding = 1}, double>("f64", rows, columns, with_nan);
        pool<3, pool_options{.stride = 1, .padding = 1}, std::int32_t>("i32", rows, columns, false);
      }
}
