// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <sstream>

#include <weft/lower/reference.hpp>
#include <weft/weft.hpp>

#include "../../compare.hpp"

using namespace weft;
using test::matches;
namespace oracle = test::oracle;

namespace {
tensor<float, extents<dyn, dyn>> counted(index_t rows, index_t columns) {
  return generate<float>(extents<dyn, dyn>{rows, columns},
                         [](index_t i) { return 0.1 * static_cast<double>(i % 23) - 1; });
}
/// Checks the value, on vectors and on the reference back end, against the definition.
template <class E>
void check_by_definition(const E& make, double tolerance) {
  static const device reference(std::make_shared<lower::reference_backend>());
  const auto expected = oracle::value(make(default_device()));
  context c(reference);
  CHECK(matches(eval(make(default_device())), expected, {.absolute = tolerance, .relative = tolerance}));
  CHECK(matches(eval(make(reference), c), expected, {.absolute = tolerance, .relative = tolerance}));
}
}  // namespace

TEST_CASE("eval: an expression may outlive the names it was written with") {
  const auto make = [] {
    auto a = counted(2, 3);
    auto b = counted(2, 3);
    return exp(a) + b * 2.0f;
  };
  auto e = make();
  const auto v = eval(e).to_vector();
  CHECK(v[0] == doctest::Approx(std::exp(-1.0) - 2));
}

TEST_CASE("eval: extents first known at run time are checked") {
  CHECK_THROWS_AS(eval(counted(2, 3) + counted(3, 3)), shape_error);
  CHECK_THROWS_AS(eval(matmul(counted(2, 3), counted(4, 2))), shape_error);
}

TEST_CASE("eval: a dynamic extent of 1 is repeated only where other ops require that it is 1") {
  const auto column = generate<float>(extents<dyn, 1>(3), [](index_t i) { return i; });
  const auto one = generate<float>(extents<dyn, 1>(1), [](index_t) { return 5; });
  CHECK_THROWS_AS(eval(one + column), shape_error);
  const auto squared = [&](const auto& x) {
    return eval(let(x, [&](auto y) { return matmul(y, y) + column; }));  // [n, 1] times [n, 1]
  };
  CHECK(squared(one).to_vector() == std::vector<float>{25, 26, 27});
  CHECK_THROWS_AS(squared(column), shape_error);
}

TEST_CASE("eval: an operand changed in place after the expression was written is named") {
  auto x = counted(2, 3);
  auto e = x + 1.0f;
  x.copy_from(std::vector<float>(6, 0.0f));
  CHECK_THROWS_WITH_AS(
      eval(e), "weft: operand 0 of shape [2, 3] was changed in place after the expression was written",
      value_error);
}

TEST_CASE("movement: against loops") {
  auto x = generate<float>(extents<2, 3, 4>{}, [](index_t i) { return i; });
  CHECK(eval(transpose(x)).to_vector()[1] == 4);
  CHECK(eval(permute<2, 0, 1>(x)).to_vector()[1] == 4);
  CHECK(eval(slice<1, 0, 3, 2>(x)).to_vector()[4] == 8);
  CHECK(eval(slice<2>(x, 1, 3)).to_vector() == std::vector<float>{1, 2, 5, 6, 9, 10, 13, 14, 17, 18, 21, 22});
  CHECK(eval(flip<2>(x)).to_vector()[0] == 3);
  CHECK(eval(pad<0, 1, 1>(x)).to_vector()[12] == 0);
  CHECK(eval(pad<0, 1, 1>(x)).to_vector()[13] == 1);
  CHECK(eval(concat<1>(x, x, x)).extents() == shape{3, {2, 9, 4}});
  CHECK(eval(concat<1>(x, x)).to_vector()[12] == 0);
  CHECK(eval(stack<0>(x, x)).extents() == shape{4, {2, 2, 3, 4}});
  CHECK(eval(expand<5, 2, 3, 4>(x)).to_vector()[24] == 0);
  CHECK(eval(reshape<6, dyn>(transpose(x))).to_vector()[1] == 4);
  CHECK(eval(flatten<0, 1>(x)).extents() == shape{2, {6, 4}});
  CHECK(eval(unflatten<2>(x, 2)).extents() == shape{4, {2, 3, 2, 2}});
  CHECK_THROWS_AS(eval(unflatten<1>(counted(2, 3), 2)), shape_error);
}

TEST_CASE("reductions: every set of dims") {
  auto x = generate<double>(extents<2, 3, 4>{}, [](index_t i) { return i; });
  CHECK(eval(sum(x)).item() == 276);
  CHECK(eval(mean(x)).item() == 11.5);
  CHECK(eval(sum(x, dims<0>)).to_vector()[0] == 12);
  CHECK(eval(sum(x, dims<1>)).to_vector()[1] == 15);
  CHECK(eval(sum(x, dims<-1>)).to_vector()[1] == 22);
  CHECK(eval(sum(x, dims<0, 2>, keepdim)).extents() == shape{3, {1, 3, 1}});
  CHECK(eval(sum(x, dims<0, 2>)).to_vector()[0] == 60);
  CHECK(eval(amax(x, dims<0, 1>)).to_vector()[3] == 23);
  CHECK(eval(amin(x, dims<2>)).to_vector()[5] == 20);
  CHECK(eval(logsumexp(x, dims<2>)).to_vector()[0] ==
        doctest::Approx(std::log(1 + std::exp(1) + std::exp(2) + std::exp(3))));
  CHECK(eval(sum(cast<bool>(x))).item() == 23);
}

TEST_CASE("types: integers stay integers, division makes floats, bf16 and f16 are stored") {
  auto i = arange<std::int64_t>(10);
  CHECK(eval(i + 1).to_vector()[9] == 10);
  CHECK(eval(i / 2).to_vector()[1] == 0.5f);
  CHECK(eval(sum(i)).item() == 45);
  CHECK(eval(i + 0.5f).to_vector()[1] == 1.5f);
  auto x = counted(3, 7);
  CHECK(matches(eval(cast<bfloat16>(x)), oracle::value(cast<bfloat16>(x))));
  CHECK(matches(eval(cast<float16>(x)), oracle::value(cast<float16>(x))));
  CHECK(matches(eval(cast<float>(eval(cast<bfloat16>(x)))), oracle::value(cast<float>(cast<bfloat16>(x)))));
  CHECK(eval(where(x < 0.0f, 0.0f, x)).to_vector()[0] == 0);
}

TEST_CASE("vector kernels and the reference back end compute what the ops say") {
  const auto x = [](const device& d) {
    auto t = counted(5, 37);
    tensor<float, extents<dyn, dyn>> on(t.extents(), d);
    on.copy_from(t.to_vector());
    return on;
  };
  check_by_definition([&](const device& d) { return gelu(x(d)) * silu(x(d)) + sqrt(abs(x(d))); }, 1e-6);
  check_by_definition([&](const device& d) { return softmax(x(d) * 3.0f); }, 1e-6);
  check_by_definition([&](const device& d) { return log_softmax(x(d)); }, 1e-6);
  check_by_definition([&](const device& d) { return sum(exp(x(d)) * x(d), dims<0>); }, 1e-6);
  check_by_definition([&](const device& d) { return amax(transpose(x(d)), dims<0>); }, 0);
  check_by_definition([&](const device& d) { return transpose(x(d)) + 1.0f; }, 0);
  check_by_definition([&](const device& d) { return cast<double>(x(d)) * 3; }, 0);
}

TEST_CASE("one kernel of many row reductions, each of which needs the one before") {
  const auto x = randn<float>(extents<dyn, 7>{3, 7});
  const auto w = randn<float>(extents<7>{}), b = randn<float>(extents<7>{});
  const auto e =
      logsumexp(softmax<1>(layer_norm(log_softmax<1>(layer_norm(x, w, b)), w, b)), dims<1>, keepdim);
  CHECK(matches(eval(e), oracle::value(e), {.absolute = 1e-5}));
}

TEST_CASE("degenerate extents: nothing, one row, one column") {
  CHECK(eval(counted(0, 5) + 1.0f).size() == 0);
  CHECK(eval(sum(counted(0, 5))).item() == 0);
  CHECK(eval(sum(counted(5, 1), dims<1>)).to_vector()[3] == doctest::Approx(-0.7));
  CHECK(eval(softmax(counted(3, 1))).to_vector() == std::vector<float>{1, 1, 1});
  CHECK(eval(matmul(counted(3, 0), counted(0, 2))).to_vector() == std::vector<float>(6, 0.0f));
}

TEST_CASE("embedding: rows by index, and an index out of range is an error") {
  auto table = generate<float>(extents<5, 2>{}, [](index_t i) { return i; });
  auto index = from(extents<3>{}, std::vector<std::int32_t>{4, 0, 4});
  CHECK(eval(embedding(table, index)).to_vector() == std::vector<float>{8, 9, 0, 1, 8, 9});
  auto bad = from(extents<1>{}, std::vector<std::int32_t>{5});
  CHECK_THROWS_AS(eval(embedding(table, bad)), value_error);
}

TEST_CASE("print: type, shape, values") {
  std::ostringstream out;
  out << generate<float>(extents<2, 2>{}, [](index_t i) { return i; });
  CHECK(out.str() == "f32 [2, 2]\n[[0, 1],\n [2, 3]]");
}

TEST_CASE("look-ups along a dim") {
  auto x = generate<float>(extents<2, 3>{}, [](index_t i) { return (i * 5) % 7; });  // 0 5 3 | 1 6 4
  auto index = from(extents<2, 2>{}, std::vector<std::int64_t>{2, 0, 1, 1});
  CHECK(eval(gather<1>(x, index)).to_vector() == std::vector<float>{3, 0, 6, 6});
  CHECK(eval(argmax<1>(x)).to_vector() == std::vector<std::int64_t>{1, 1});
  CHECK(eval(argmin<0>(x)).to_vector() == std::vector<std::int64_t>{0, 0, 0});
  CHECK(eval(scatter_add<1>(x, index, full<float>(extents<2, 2>{}, 10.0f))).to_vector() ==
        std::vector<float>{10, 5, 13, 1, 26, 4});
  CHECK(eval(one_hot<3>(from(extents<2>{}, std::vector<std::int32_t>{2, 0}))).to_vector() ==
        std::vector<float>{0, 0, 1, 1, 0, 0});
  auto columns = from(extents<2>{}, std::vector<std::int32_t>{2, 0});
  CHECK(eval(index_select<1>(x, columns)).to_vector() == std::vector<float>{3, 0, 4, 1});
  auto bad = from(extents<2, 1>{}, std::vector<std::int64_t>{0, 3});
  CHECK_THROWS_AS(eval(gather<1>(x, bad)), value_error);
}

namespace {
struct doubled {
  auto operator()(expression auto x) const { return x * 2.0f; }
};
}  // namespace

TEST_CASE("eval: operands of lets, derivatives, repeats and recurrences are checked like those of ops") {
  const auto refuses = [](auto write) {
    auto x = counted(2, 3);
    const auto e = write(x);
    const auto always = compile(e);
    x.copy_from(std::vector<float>(6, 0.0f));
    CHECK_THROWS_WITH_AS(eval(e), doctest::Contains("of shape [2, 3] was changed in place"), value_error);
    CHECK(always().to_vector() == eval(write(x)).to_vector());
  };
  refuses([](auto x) { return let(x, [](auto y) { return y * y; }); });
  refuses([](auto x) { return grad([](auto y) { return sum(y * y); }, x); });
  const repeat<doubled> blocks{std::vector<doubled>(2)};
  refuses([&](auto x) { return blocks(x); });
  gru_cell<3, 4> cell;
  initialize(cell, 1);
  refuses([&](auto x) { return cell(x, ones<float>(extents<2, 4>{})); });
}

TEST_CASE("eval: a tap that evaluates in its own context is refused, also with another size") {
  context c;
  index_t rows = 2;
  c.on_tap = [&](const tapped&) {
    if (rows > 300) return;
    rows = 301;
    (void)eval(tap(zeros<float>(extents<dyn, 2>{rows, 2}), "inside") * 2.0f, c);
  };
  const auto value = [&](index_t n) { return eval(tap(ones<float>(extents<dyn, 2>{n, 2}), "x") * 2.0f, c); };
  CHECK_THROWS_WITH_AS(value(2), doctest::Contains("this one is running a program"), usage_error);
  CHECK(value(3).to_vector() == std::vector<float>(6, 2.0f));  // the context is still usable
}

TEST_CASE("numbers of draws: one for each random state, which has a seed") {
  context c;
  std::vector<context::random_state> draws;
  c.number_draws(&draws);
  CHECK(c.next_random() == 0);
  CHECK(c.next_random() == 1);
  c.begin_step(0);
  c.set_randomness(draws[0]);
  CHECK(c.next_random() == 0);
  c.set_randomness({draws[0].seed + 1, draws[0].step, draws[0].programs});
  CHECK(c.next_random() == 2);
  CHECK(draws.size() == 3);
}
