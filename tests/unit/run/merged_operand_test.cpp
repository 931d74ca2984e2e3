// SPDX-License-Identifier: MIT
// Copies that matrix products make unnecessary: the elements that are read instead, memory, values.
#include <doctest/doctest.h>

#include <tuple>
#include <utility>
#include <vector>

#include <weft/weft.hpp>

#include "../../compare.hpp"

using namespace weft;
using test::matches;
namespace oracle = test::oracle;

namespace {

/// Pseudo-random numbers.
struct numbers {
  std::uint32_t seed;
  std::uint64_t next = 0;
  index_t below(index_t n) {
    return static_cast<index_t>(philox_word({7, seed}, next++) % static_cast<std::uint64_t>(n));
  }
  index_t of(std::initializer_list<index_t> all) {
    return all.begin()[below(static_cast<index_t>(all.size()))];
  }
};

/// Calls f(index) for all indices of these extents.
template <class F>
void for_each_index(const shape& extents, const F& f) {
  for (index_t i = 0; i < extents.size(); ++i) {
    index_t at[max_order]{}, left = i;
    for (int d = extents.order; d-- > 0; left /= extents[d]) at[d] = left % extents[d];
    f(at);
  }
}

/// A contiguous layout, changed by up to three random view steps.
layout some_view(numbers& some, const shape& extents) {
  symbol_table none;
  layout l = contiguous_layout(none, extents);
  for (index_t steps = some.below(4); steps-- > 0;) {
    layout next = l;
    shape to = l.extents;
    attributes at;
    switch (some.below(5)) {
      case 0: {  // two dims as one, or one as two
        const int d = static_cast<int>(some.below(to.order));
        shape s;
        const index_t parts = to[d] % 3 == 0 ? 3 : to[d] % 2 == 0 ? 2 : 1;
        const bool divides = to.order < 4 && some.below(2) == 0;
        for (int i = 0; i < to.order; ++i) {
          if (i == d && divides) s.append(parts), s.append(to[i] / parts);
          else if (i == d && i + 1 < to.order) s.append(to[i] * to[i + 1]), ++i;
          else s.append(to[i]);
        }
        if (make_view(none, view_kind::reshape, {}, s, next)) l = next;
        break;
      }
      case 1: {
        at.count = to.order;
        for (int i = 0; i < to.order; ++i) at[i] = i;
        for (int i = to.order; i-- > 1;) std::swap(at.v[i], at.v[some.below(i + 1)]);
        shape s;
        for (int i = 0; i < to.order; ++i) s.append(to[static_cast<int>(at[i])]);
        if (make_view(none, view_kind::permute, at, s, next)) l = next;
        break;
      }
      case 2: {
        const int d = static_cast<int>(some.below(to.order));
        const index_t step = 1 + some.below(4), start = some.below(2) == 0 ? 0 : some.below(to[d]);
        at = {{d, start, to[d], step}, 4};
        const index_t count = some.below(2) == 0 ? to[d] - start : 1 + some.below(to[d] - start);
        to[d] = (count + step - 1) / step;
        if (make_view(none, view_kind::slice, at, to, next)) l = next;
        break;
      }
      case 3: {
        if (to.order != 2) break;
        const height_width size(1 + some.below(to[0]), 1 + some.below(to[1])), step(1 + some.below(2));
        at = {{size.packed(), step.packed(), height_width(1).packed()}, 3};
        const shape s{4,
                      {(to[0] - size.height) / step.height + 1, (to[1] - size.width) / step.width + 1,
                       size.height, size.width}};
        if (make_view(none, view_kind::windows, at, s, next)) l = next;
        break;
      }
      default: {
        if (to.order == 4) break;
        shape s;
        s.append(2);
        for (int i = 0; i < to.order; ++i) s.append(to[i]);
        if (make_view(none, view_kind::expand, {}, s, next)) l = next;
      }
    }
  }
  return l;
}

}  // namespace

TEST_CASE("what is read instead of a copy are the elements that would be copied") {
  int merged = 0;
  for (std::uint32_t seed = 0; seed < 60'000; ++seed) {
    numbers some{seed};
    layout from;
    const index_t order = 1 + some.below(4);
    for (index_t d = 0; d < order; ++d) from.extents.append(some.of({1, 2, 3, 4, 6}));
    for (int d = 0; d < from.extents.order; ++d)
      from.stride[d].times = some.of({0, 1, 1, 2, 3, 6, 12, -1, -4, 35});
    const layout view = some_view(some, from.extents);
    if (view.extents.order < 2) continue;
    const runtime::merged_operand m = runtime::merge_operand(view, from);
    if (!m.possible) continue;
    merged += view.extents.size() > 1;
    const int rows = view.extents.order - 2;
    bool same = true;
    for_each_index(view.extents, [&](const index_t* at) {
      index_t in_copy = view.offset, expected = 0, actual = 0;
      for (int d = 0; d < view.extents.order; ++d) in_copy += at[d] * view.stride[d].times;
      for (int d = from.extents.order; d-- > 0; in_copy /= from.extents[d])
        expected += in_copy % from.extents[d] * from.stride[d].times;
      for (int d = 0; d < view.extents.order; ++d) {
        const merged_dims::side* const side = d < rows ? nullptr : d == rows ? &m.dims.rows : &m.dims.columns;
        index_t left = at[d];
        if (!side) actual += left * m.stride[d];
        else
          for (int s = side->order; s-- > 0; left /= side->extent[s])
            actual += left % side->extent[s] * side->stride[s];
      }
      same = same && expected == actual;
    });
    CAPTURE(seed);
    REQUIRE(same);
  }
  // Rows and columns that overlap in the copy: (0, 1) and (1, 0) are the same element.
  const layout overlapping{{2, {3, 3}}, {{1}, {1}}, 0}, copied{{2, {2, 3}}, {{5}, {1}}, 0};
  CHECK(!runtime::merge_operand(overlapping, copied).possible);
  // Rows that begin inside copied rows.
  const layout across{{2, {3, 3}}, {{4}, {1}}, 0}, rows{{2, {4, 3}}, {{5}, {1}}, 0};
  CHECK(!runtime::merge_operand(across, rows).possible);
  CHECK(merged > 1000);
}

namespace {

/// `f` of tensors with these extents: its value, and the memory that its evaluation takes besides operands
/// and result.
template <class... Extents, class F>
std::size_t memory_of(F f) {
  using value = decltype(f(std::declval<tensor<float, Extents>>()...));
  const device d(std::make_shared<cpu::cpu_backend>(2));
  context c(d);
  std::size_t used = 0;
  index_t stream = 0;
  const std::tuple operands{tensor<float, Extents>(
      randn<float>(Extents{}, {.stream = static_cast<std::uint64_t>(++stream)}, d))...};
  std::apply(
      [&](const auto&... x) {
        const std::size_t before = d.memory().figures().peak;
        const auto y = eval(f(x...), c);
        used = d.memory().figures().peak - before;
        CHECK(used == peak_bytes<value>());
        CHECK(matches(y, oracle::value(f(x...)), {.of_largest = 1e-5}));
      },
      operands);
  return used -
         caching_allocator::size_class(static_cast<std::size_t>(value::static_shape.size()) * sizeof(float));
}

constexpr auto columns = [](auto x) {  // [9 C, windows] of [C, H, W]
  const auto v = permute<0, 3, 4, 1, 2>(windows<3>(x));
  constexpr const shape& s = decltype(v)::static_shape;
  return reshape<s[0] * 9, s[3] * s[4]>(v);
};

}  // namespace

TEST_CASE(
    "windows that products alone read take no memory, as known by the compiler, and no copy changes a "
    "value") {
  using image = extents<16, 20, 21>;
  constexpr std::size_t copy = 16 * 9 * 18 * 19 * sizeof(float);
  CHECK(memory_of<extents<40, 144>, image>([](auto w, auto x) { return matmul(w, columns(x)); }) == 0);
  CHECK(memory_of<extents<40, 342>, image>([](auto g, auto x) { return matmul(g, transpose(columns(x))); }) ==
        0);
  CHECK(memory_of<extents<342, 40>, image>([](auto g, auto x) { return matmul(columns(x), g); }) == 0);
  CHECK(memory_of<image>([](auto x) { return matmul(transpose(columns(x)), columns(x)); }) == 0);
  // For a computed value, which lives as long as it is read.
  const std::size_t computed =
      memory_of<extents<40, 144>, extents<40, 40>, image>([](auto w, auto v, auto x) {
        return matmul(v, matmul(w, columns(exp(x)))) + matmul(w, columns(exp(x)));
      });
  CHECK(computed < copy);
  // Read by other ops, too, or itself the result.
  CHECK(memory_of<extents<40, 144>, image>([](auto w, auto x) {
          return let(columns(x), [=](auto v) { return matmul(w, v) + sum(v) + matmul(w, exp(v)); });
        }) >= copy);
  // The copy is itself a result.
  const tensor<float, extents<40, 144>> w(randn<float>(extents<40, 144>{}));
  const tensor<float, image> x(randn<float>(image{}, {.stream = 1}));
  const tensor<float, extents<40, 342>> product(zeros<float>(extents<40, 342>{}));
  const tensor<float, extents<144, 342>> copied(zeros<float>(extents<144, 342>{}));
  update(default_context(), {product.state(), copied.state()}, bundled(matmul(w, columns(x)), columns(x)));
  CHECK(matches(product, oracle::value(matmul(w, columns(x))), {.absolute = 1e-4, .relative = 1e-5}));
  CHECK(matches(copied, oracle::value(columns(x))));
}

namespace {

template <element T, conv_options O, index_t H, index_t W>
void check_convolution(const extents<dyn, dyn, dyn, dyn>& image, index_t outputs, double tolerance) {
  const extents<dyn, dyn, H, W> weights{outputs, image[1] / O.groups, H, W};
  const variable<T, extents<dyn, dyn, dyn, dyn>> x(randn<T>(image));
  const variable<T, extents<dyn, dyn, H, W>> w(randn<T>(weights, {.stream = 1}));
  const auto y = conv2d<O>(x, w);
  CAPTURE(image[0]);
  CAPTURE(image[1]);
  CAPTURE(image[2]);
  CAPTURE(outputs);
  CHECK(matches(eval(y), oracle::value(y), {.absolute = tolerance, .relative = tolerance}));
  tape steps;
  const auto loss = sum(cast<double>(y) * cast<double>(y));
  steps.backward(steps.eval(loss));
  const auto check_slope = [&](const auto& leaf) {  // along a direction in which all elements count
    const auto direction = randn_like(leaf, {.stream = 2});
    const auto g = cast<double>(leaf.grad());
    CHECK(matches(eval(sum(g * cast<double>(direction))), oracle::slope(loss, leaf, oracle::read(direction)),
                  {.absolute = 3 * tolerance * eval(sqrt(sum(g * g))).item()}));
  };
  check_slope(x);
  check_slope(w);
}

}  // namespace

TEST_CASE("convolutions of odd sizes, forward and backward") {
  check_convolution<float, conv_options{.padding = 1}, 3, 3>({3, 10, 7, 5}, 11, 1e-4);
  check_convolution<float, conv_options{.stride = 2, .padding = 2}, 5, 3>({2, 3, 11, 8}, 9, 1e-4);
  check_convolution<float, conv_options{.stride = {1, 3}, .padding = {2, 0}, .dilation = {2, 1}}, 3, 4>(
      {1, 4, 9, 13}, 2, 1e-4);
  check_convolution<float, conv_options{.stride = 2, .padding = 1, .groups = 2}, 3, 3>({4, 6, 6, 7}, 18,
                                                                                       1e-4);
  check_convolution<float, conv_options{}, 1, 1>({3, 5, 4, 7}, 10, 1e-4);
  check_convolution<float, conv_options{.padding = 1}, 3, 3>({0, 3, 5, 4}, 9, 1e-4);
  check_convolution<float, conv_options{.padding = 2}, 1, 1>({2, 5, 3, 2}, 1, 1e-4);
  check_convolution<double, conv_options{.padding = 1}, 3, 3>({2, 7, 6, 9}, 5, 1e-9);
  check_convolution<bfloat16, conv_options{.padding = 1}, 3, 3>({2, 8, 7, 7}, 16, 0.02);
  check_convolution<float16, conv_options{.stride = 2}, 3, 3>({2, 9, 9, 7}, 17, 0.003);
}

namespace {
struct launching_backend : cpu::cpu_backend {
  bool launches_together() const override { return true; }
};
}  // namespace

TEST_CASE("copies that are not made are no part of a launch of several kernels") {
  const auto value = [](const device& where, auto f) {
    context c(where);
    const auto x = randn<float>(extents<2, 3, 8, 8>{}, {.seed = 1}, where);
    const auto k = randn<float>(extents<4, 3, 3, 3>{}, {.seed = 2}, where);
    const auto a = randn<float>(extents<6, 5>{}, {.seed = 3}, where);
    return eval(f(x, k, a), c).item();
  };
  const device launching(std::make_shared<launching_backend>());
  const auto check = [&](auto f) { CHECK(value(launching, f) == value(default_device(), f)); };
  check([](auto x, auto k, auto a) { return sum(conv2d(x, k)) + sum(amax(exp(a), dims<1>)); });
  check([](auto x, auto k, auto a) { return sum(amax(exp(a), dims<1>)) + sum(conv2d(x, k)); });
  check([](auto x, auto k, auto a) {
    return sum(amax(exp(a), dims<1>)) + sum(conv2d(x, k)) + sum(amin(exp(a), dims<0>));
  });
  check([](auto x, auto k, auto) { return sum(relu(conv2d(x, k) + 1.0f)); });
}
