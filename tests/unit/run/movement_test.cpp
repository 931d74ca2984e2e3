// SPDX-License-Identifier: MIT
// Views in compiled kernels, their bounds, and updates of memory that is also read.
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <weft/weft.hpp>

#include "../../throws_with.hpp"

using namespace weft;
using weft::test::throws_with;

namespace {

template <expression E>
void check(const E& e, const shape& extents, const std::vector<float>& expected) {
  const auto t = eval(e);
  CHECK(t.extents() == extents);
  CHECK(t.to_vector() == expected);
}

template <index_t... E>
auto counted(extents<E...> s) {
  return generate<float>(s, [](index_t i) { return static_cast<float>(i); });
}
auto counted(index_t rows, index_t columns) { return counted(extents<dyn, dyn>{rows, columns}); }

}  // namespace

TEST_CASE("views: what a reshape reads is the view, not its operand") {
  const auto x = counted(extents<3, 4>{});
  const auto d = counted(extents<dyn, 4>{3});
  const auto c = counted(extents<4, 1>{});
  check(reshape<3>(slice<1, 1, 2>(x)), {1, {3}}, {1, 5, 9});
  check(sum(slice<1, 1, 2>(x), dims<1>) + 1.0f, {1, {3}}, {2, 6, 10});
  check(sum(slice<1, 1, 2>(d), dims<1>) + 1.0f, {1, {3}}, {2, 6, 10});
  check(reshape<4>(flip<0>(c)) + 1.0f, {1, {4}}, {4, 3, 2, 1});
  check(mean(slice<1, 2, 3>(x), dims<1>) * 2.0f, {1, {3}}, {4, 12, 20});
  check(amax(slice<1, 3, 4>(x), dims<1>) + 0.5f, {1, {3}}, {3.5, 7.5, 11.5});
  check(flatten<0, 1>(slice<1, 0, 1>(x)) - 1.0f, {1, {3}}, {-1, 3, 7});
  check(flatten<0, 1>(chunk<1, 4, 1>(x)) - 1.0f, {1, {3}}, {0, 4, 8});
  check(softmax<0>(slice<1, 0, 1>(x)) * 0.0f + slice<1, 0, 1>(x), {2, {3, 1}}, {0, 4, 8});
  check(reshape<2>(slice<0, 0, 3, 2>(slice<1, 1, 2>(x))) + 0.0f, {1, {2}}, {1, 9});
  check(reshape<6>(slice<1, 0, 4, 2>(x)) + 1.0f, {1, {6}}, {1, 3, 5, 7, 9, 11});
  check(reshape<3, 2>(permute<1, 0, 2>(counted(extents<2, 3, 1>{}))) + 1.0f, {2, {3, 2}}, {1, 4, 2, 5, 3, 6});
  check(sum(permute<1, 0, 2>(counted(extents<2, 3, 1>{})), dims<2>) + 1.0f, {2, {3, 2}}, {1, 4, 2, 5, 3, 6});
  check(sum(reshape<4096>(expand<4096, 1>(full<float>(extents<1, 1>{}, 2)))), {}, {8192});
  check(reshape<6>(expand<3, 2>(counted(extents<3, 1>{}))) + 1.0f, {1, {6}}, {1, 1, 2, 2, 3, 3});
}

TEST_CASE("views: dynamic extents that turn out to be 1 or 0") {
  for (index_t n : {0, 1, 2, 5}) {
    const auto x = counted(n, 3), t = counted(3, n);
    std::vector<float> column, transposed, row;
    for (index_t i = 0; i < n; ++i) column.push_back(static_cast<float>(3 * i + 1) + 1);
    for (index_t i = 0; i < n; ++i)
      for (index_t k = 0; k < 3; ++k) transposed.push_back(static_cast<float>(k * n + i) * 2);
    check(reshape<dyn>(slice<1>(x, 1, 2)) + 1.0f, {1, {n}}, column);
    check(sum(slice<1, 1, 2>(x), dims<1>) + 1.0f, {1, {n}}, column);
    check(flatten<0, 1>(transpose(t)) * 2.0f, {1, {3 * n}}, transposed);
    check(reshape<dyn>(flip<0>(flip<0>(transpose(t)))) * 2.0f, {1, {3 * n}}, transposed);
  }
}

TEST_CASE("views: the gradient of a stack along the last dim") {
  variable<float, extents<3>> x(counted(extents<3>{})), z(counted(extents<3>{}));
  tape steps;
  const auto loss = steps.eval(sum(stack<-1>(x, z) * counted(extents<3, 2>{})));
  steps.backward(loss);
  CHECK(x.grad().to_vector() == std::vector<float>{0, 2, 4});
  CHECK(z.grad().to_vector() == std::vector<float>{1, 3, 5});
}

TEST_CASE("views: dims from the right, several unknown extents, given sizes") {
  const auto x = counted(2, 3);
  check(unsqueeze<1>(x) + 1.0f, {3, {2, 1, 3}}, {1, 2, 3, 4, 5, 6});
  check(unsqueeze<-1>(x), {3, {2, 3, 1}}, {0, 1, 2, 3, 4, 5});
  check(squeeze<1>(unsqueeze<1>(x)) + 1.0f, {2, {2, 3}}, {1, 2, 3, 4, 5, 6});
  check(squeeze<-1>(unsqueeze<-1>(x)), {2, {2, 3}}, {0, 1, 2, 3, 4, 5});
  check(squeeze<0>(reshape<1>(sum(x))), {}, {15});
  check(squeeze<0>(counted(extents<1, dyn>{3})), {1, {3}}, {0, 1, 2});
  check(stack<0>(x, x), {3, {2, 2, 3}}, {0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5});
  check(stack<-1>(x, x * 2.0f), {3, {2, 3, 2}}, {0, 0, 1, 2, 2, 4, 3, 6, 4, 8, 5, 10});
  check(reshape(arange<float>(6), extents<dyn, dyn>{2, 3}) + 1.0f, {2, {2, 3}}, {1, 2, 3, 4, 5, 6});
  check(permute<-1, -2>(x) + 1.0f, {2, {3, 2}}, {1, 4, 2, 5, 3, 6});
  check(concat<-2>(x, x), {2, {4, 3}}, {0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5});
  check(expand(counted(extents<dyn, 1>{2}), extents<dyn, dyn>{2, 3}) + 0.0f, {2, {2, 3}}, {0, 0, 0, 1, 1, 1});
  CHECK(throws_with<shape_error>([&] { eval(reshape(x, extents<dyn, dyn>{2, 4})); }, {"6", "8"}));
  check(reshape<dyn>(full<float>(extents<>{}, 2) + 1.0f) * 2.0f, {1, {1}}, {6});
  check(reshape<0>(zeros<float>(extents<0, 7>{})) + 1.0f, {1, {0}}, {});
  check(reshape<0>(zeros<float>(extents<dyn, 7>{0})) + 1.0f, {1, {0}}, {});
  CHECK(throws_with<shape_error>([&] { eval(reshape<0>(zeros<float>(extents<dyn, 7>{1}))); }, {"0", "7"}));
  check(reshape(zeros<float>(extents<0, 7>{}), extents<dyn, 0>{3}) + 1.0f, {2, {3, 0}}, {});
  check(reshape(zeros<float>(extents<dyn, 7>{0}), extents<0, dyn>{2}) * 2.0f, {2, {0, 2}}, {});
  CHECK(throws_with<shape_error>([&] { reshape(x, extents<dyn, dyn>{-2, -3}); }, {"-2"}));
}

TEST_CASE("concat: every part is copied once, however many there are, in one element type") {
  const auto x = counted(extents<2, 1>{});
  const auto e = concat<1>(x, x, x, x, x, x, x, x, x, x, x);
  using program = runtime::value_program<std::remove_const_t<decltype(e)>>;
  CHECK(program::plan.steps.size() == 1);
  CHECK(program::plan.steps[0].inputs == 11);
  std::vector<float> expected(11, 0.0f);
  expected.resize(22, 1.0f);
  check(e, {2, {2, 11}}, expected);
  const auto inner = concat<1>(x, x);  // read twice: stays a value of its own
  check(let(inner, [](auto i) { return concat<1>(i, i * 2.0f, i); }), {2, {2, 6}},
        {0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 1, 1});
  const auto wide = eval(concat<0>(arange<float>(2), arange<double>(2)));
  CHECK(wide.to_vector() == std::vector<double>{0, 1, 0, 1});
}

TEST_CASE("slice: bounds are checked where they are known first") {
  const auto t = arange<float>(10);
  const tensor<float, extents<10>> fixed(t.state());
  const auto outside = [&](auto f, const std::vector<std::string>& words) {
    std::vector<std::string> all = words;
    all.insert(all.begin(), {"slice", "dim 0", "[10]"});
    return throws_with<shape_error>(f, all);
  };
  CHECK(outside([&] { eval(slice<0>(t, 5, 20)); }, {"5", "20"}));
  CHECK(outside([&] { eval(slice<0>(t, 11, 11)); }, {"11"}));
  CHECK(outside([&] { eval(slice<0, 5, 20>(t)); }, {"5", "20"}));
  CHECK(outside([&] { eval(slice<0, 3>(t, 5, 11)); }, {"5", "11"}));
  CHECK(outside([&] { eval(slice<0>(t, 5, 20) + t); }, {"5", "20"}));  // not only "extents differ"
  CHECK(outside([&] { slice<0>(fixed, 5, 20); }, {"5", "20"}));
  for (const auto& [start, stop] : {std::pair<index_t, index_t>{-5, 10}, {0, -2}, {0, -1}, {7, 3}})
    CHECK(throws_with<shape_error>([&, a = start, b = stop] { slice<0>(t, a, b); },
                                   {"slice", std::to_string(start), std::to_string(stop)}));
  CHECK(eval(slice<0>(t, 10, 10)).size() == 0);
  CHECK(eval(slice<0, 3>(t, 1, 9)).to_vector() == std::vector<float>{1, 4, 7});
  variable<float, extents<dyn>> x(t);
  tape steps;
  CHECK_THROWS_AS(steps.eval(sum(slice<0>(x, 5, 20))), shape_error);
}

TEST_CASE("unflatten: the number of parts is positive and divides") {
  const auto t = arange<float>(10);
  CHECK(throws_with<shape_error>([&] { unflatten<0>(t, -1); }, {"unflatten", "-1"}));
  CHECK(throws_with<shape_error>([&] { unflatten<0>(t, 0); }, {"unflatten", "0"}));
  CHECK(throws_with<shape_error>([&] { eval(unflatten<0>(t, 3)); }, {"10", "3"}));
}

TEST_CASE("sizes: products that overflow are errors") {
  constexpr index_t big = index_t{1} << 32;
  CHECK_THROWS_AS((shape{2, {big, big}}.size()), shape_error);
  CHECK(shape{3, {0, big, big}}.size() == 0);
  CHECK(shape{3, {big, big, 0}}.size() == 0);
  CHECK_THROWS_AS((tensor<float, extents<dyn, dyn>>(shape{2, {big, big}})), shape_error);
  CHECK_THROWS_AS((tensor<double, extents<dyn>>(shape{1, {index_t{1} << 61}})), shape_error);
  const auto empty = tensor<float, extents<dyn, dyn, dyn>>(shape{3, {big, 0, big}});
  CHECK(eval(flatten<1, 2>(empty) + 0.0f).size() == 0);
  CHECK_THROWS_AS(eval(flatten<0, 2>(permute<0, 2, 1>(empty)) + 0.0f),
                  shape_error);  // big * big comes before the 0
  CHECK_THROWS_AS(
      eval(expand(arange<float>(big - big + 1) + 0.0f, extents<dyn>{std::numeric_limits<index_t>::max()})),
      error);
}

TEST_CASE("update: in place only where each element depends on the one it replaces") {
  context& c = default_context();
  const auto p = arange<float>(6);
  update(c, {p.state()}, flip<0>(p) + 0.0f);
  CHECK(p.to_vector() == std::vector<float>{5, 4, 3, 2, 1, 0});
  const auto m = counted(extents<3, 3>{});
  update(c, {m.state()}, transpose(m) + 0.0f);
  CHECK(m.to_vector() == std::vector<float>{0, 3, 6, 1, 4, 7, 2, 5, 8});
  update(c, {m.state()}, m + slice<0, 0, 1>(m));  // reads a row of itself for each row
  CHECK(m.to_vector() == std::vector<float>{0, 6, 12, 1, 7, 13, 2, 8, 14});
  const auto q = arange<float>(200);
  const tensor<float, extents<dyn>> left(part_of(*q.state(), 0, {1, {199}})),
      right(part_of(*q.state(), 1, {1, {199}}));
  update(c, {right.state()}, left + 0.0f);
  bool moved = q.to_vector()[0] == 0;
  for (std::size_t i = 1; i < 200; ++i) moved = moved && q.to_vector()[i] == static_cast<float>(i - 1);
  CHECK(moved);
  update(c, {left.state()}, slice<0>(q, 1, 200) * 2.0f);
  CHECK(q.to_vector()[0] == 0);
  CHECK(q.to_vector()[198] == 396);
  const auto a = arange<float>(40), b = full<float>(extents<dyn>{40}, 1);
  update(c, {a.state(), b.state()}, bundled(a + b, a - b));  // both from the old elements
  CHECK(a.to_vector()[39] == 40);
  CHECK(b.to_vector()[39] == 38);
  update(c, {b.state(), a.state()}, bundled(a * 1.0f, b * 1.0f));
  CHECK(a.to_vector()[39] == 38);
  CHECK(b.to_vector()[39] == 40);
  update(c, {a.state(), a.state()},
         bundled(a * 0.0f + 7.0f, a + 1.0f));  // the same memory twice: the last value wins
  CHECK(a.to_vector()[39] == 39);
  const auto x = arange<float>(4);
  update(c, {x.state()}, flat_view<float>(x.state()) * 2.0f);
  CHECK(x.to_vector() == std::vector<float>{0, 2, 4, 6});
}

TEST_CASE("update: a target of another shape or type is refused before anything is written") {
  context& c = default_context();
  const auto small = arange<float>(3), large = arange<float>(300), other = arange<float>(3);
  const auto m = counted(extents<2, 3>{});
  CHECK(throws_with<shape_error>(
      [&] { update(c, {other.state(), small.state()}, bundled(other + 1.0f, large + 1.0f)); },
      {"update", "target 1", "[3]", "[300]", "f32"}));
  CHECK(other.to_vector() == std::vector<float>{0, 1, 2});
  CHECK(throws_with<shape_error>([&] { update(c, {small.state()}, arange<double>(3) + 1.0); },
                                 {"update", "f32", "f64"}));
  CHECK(throws_with<shape_error>([&] { update(c, {m.state()}, transpose(m) + 0.0f); },
                                 {"update", "[2, 3]", "[3, 2]"}));
  CHECK(throws_with<usage_error>([&] { update(c, {small.state(), other.state()}, small + 1.0f); },
                                 {"update", "2", "1"}));
  CHECK_THROWS_AS(update(c, {small.state()}, slice<0>(large, 0, 400)), shape_error);
  update(c, {m.state()}, flat_view<float>(m.state()) + 1.0f);
  CHECK(m.to_vector() == std::vector<float>{1, 2, 3, 4, 5, 6});
}

TEST_CASE("an extent given at run time that only one number fits is that number to what follows") {
  variable<float, extents<2>> x(counted(extents<2>{}));
  const auto rows = [](auto v) { return expand<2, 6>(reshape(stack<0>(v, v, v), extents<dyn, 6>(1))); };
  check(rows(x), {2, {2, 6}}, {0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1});
  tape steps;
  steps.backward(steps.eval(sum(rows(x))));
  CHECK(x.grad().to_vector() == std::vector<float>{6, 6});
  CHECK(throws_with<shape_error>([&] { eval(reshape(stack<0>(x, x, x), extents<dyn, 6>(2))); },
                                 {"reshape", "[3, 2]", "6 and 12"}));
}

TEST_CASE("an extent that only the derivative knows: nodes made before see it too") {
  variable<float, extents<1>> x(from(extents<1>{}, std::vector<float>{3}));
  tape steps;
  const auto y = steps.eval([](auto v) {
    const auto least =
        amin(unflatten<0>(v, 1), dims<1>, keepdim);  // [given, 1 / given]; the product says that given is 1
    return matmul(least, least);
  }(x));
  CHECK(y.to_vector() == std::vector<float>{9});
  steps.backward(steps.eval(sum(y)));
  CHECK(x.grad().to_vector() == std::vector<float>{6});
}

namespace {
template <class T>
void check_copies(cpu::cpu_backend& device, dtype type) {
  std::vector<T> from(2 * 3 * 4 * 5 * 100), to(from.size()), expected(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<T>(i * 7 + 1);
  const index_t n[] = {2, 3, 4, 500};
  int order[] = {0, 1, 2, 3};
  do {
    for (index_t step : {1, 2, -1}) {
      strided source{from.data(), type, {4, {}}, {}, false}, target{to.data(), type, {4, {}}, {}, false};
      index_t natural[4] = {3 * 4 * 500, 4 * 500, 500, 1}, start = 0, size = 1;
      for (int d = 0; d < 4; ++d) {
        const index_t e = step == 2 && order[d] == 3 ? 250 : n[order[d]];
        source.extents[d] = target.extents[d] = e;
        source.stride[d] = natural[order[d]] * (order[d] == 3 || step < 0 ? step : 1);
        if (source.stride[d] < 0) start += (e - 1) * -source.stride[d];
        size *= e;
      }
      source.pointer = from.data() + start;
      for (int d = 4; d-- > 0;) target.stride[d] = d == 3 ? 1 : target.stride[d + 1] * target.extents[d + 1];
      device.copy(source, target);
      bool right = true;
      for (index_t i = 0; i < size; ++i)
        right = right && to[static_cast<std::size_t>(i)] ==
                             source.data<T>()[element_offset(source.extents, source.stride, 0, 4, i)];
      CHECK(right);
      for (index_t i = 0; i < size; ++i) expected[static_cast<std::size_t>(i)] = static_cast<T>(i + 3);
      strided new_elements = target;
      new_elements.pointer = expected.data();
      device.copy(new_elements, source);
      right = true;
      for (index_t i = 0; i < size; ++i)
        right = right && source.data<T>()[element_offset(source.extents, source.stride, 0, 4, i)] ==
                             expected[static_cast<std::size_t>(i)];
      CHECK(right);
    }
  } while (std::next_permutation(order, order + 4));
}
}  // namespace

TEST_CASE("copy: strided copies of all orders of dims, both ways, on one thread and on three") {
  for (int threads : {1, 3}) {
    cpu::cpu_backend device(threads);
    check_copies<double>(device, dtype::f64);
    check_copies<float>(device, dtype::f32);
    check_copies<std::uint16_t>(device, dtype::bf16);
    check_copies<std::uint8_t>(device, dtype::u8);
  }
}

namespace {

/// Elements of an array of three dims.
struct block {
  shape extents;
  std::vector<float> elements;

  /// Pads a dim with zeros around and between its elements, to `extent` elements.
  block padded(int dim, index_t before, index_t extent, index_t step = 1) const {
    block result{extents, {}};
    result.extents[dim] = extent;
    for (index_t i = 0; i < result.extents[0]; ++i)
      for (index_t j = 0; j < result.extents[1]; ++j)
        for (index_t k = 0; k < result.extents[2]; ++k) {
          index_t at[] = {i, j, k};
          at[dim] -= before;
          const bool inside = at[dim] >= 0 && at[dim] % step == 0 && at[dim] / step < extents[dim];
          at[dim] /= step;
          const index_t from = (at[0] * extents[1] + at[1]) * extents[2] + at[2];
          result.elements.push_back(inside ? elements[static_cast<std::size_t>(from)] : 0);
        }
    return result;
  }
};

template <index_t Dim, index_t Before, index_t Extent, index_t Step = 1>
auto pad_dim(auto x) {
  return weft::apply<op::pad, attr<Dim, Before, Extent, Step>>(x);
}

}  // namespace

TEST_CASE(
    "zeros around several dims, of which a step computes two, around one dim twice, and read in between") {
  const auto x = counted(extents<2, 3, 4>{}) + 1.0f;
  const block b{{3, {2, 3, 4}}, eval(x).to_vector()};
  const auto is = [](const auto& e, const block& expected) { check(e, expected.extents, expected.elements); };
  is(pad_dim<2, 2, 7>(pad_dim<1, 1, 6>(x)), b.padded(1, 1, 6).padded(2, 2, 7));
  is(pad_dim<0, 1, 3>(pad_dim<2, 2, 7>(pad_dim<1, 1, 6>(x))),
     b.padded(1, 1, 6).padded(2, 2, 7).padded(0, 1, 3));
  is(pad_dim<1, 2, 9>(pad_dim<1, 1, 6>(x)), b.padded(1, 1, 6).padded(1, 2, 9));
  is(pad_dim<1, 4, 20, 3>(pad_dim<1, 1, 6, 2>(x)), b.padded(1, 1, 6, 2).padded(1, 4, 20, 3));
  is(let(pad_dim<1, 1, 6>(x), [](auto v) { return pad_dim<2, 2, 7>(v) * sum(v); }) / 300.0f,
     b.padded(1, 1, 6).padded(2, 2, 7));  // 1 + ... + 24 = 300
}
