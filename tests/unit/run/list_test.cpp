// SPDX-License-Identifier: MIT
// Lists of tensors with a length known at run time: joining them equals joining tensor by tensor, and
// gradients flow to each.
#include <doctest/doctest.h>

#include <weft/weft.hpp>

using namespace weft;

namespace {

using matrix = variable<float, extents<dyn, 3>>;

/// `count` matrices; the i-th one has 1 + i % 3 rows, or all have two.
std::vector<matrix> matrices(index_t count, bool alike) {
  std::vector<matrix> all;
  for (index_t i = 0; i < count; ++i)
    all.push_back(matrix(randn<float>(extents<dyn, 3>{alike ? 2 : 1 + i % 3, 3},
                                      {.seed = static_cast<std::uint64_t>(i) + 1})));
  return all;
}
std::vector<float> elements_of(const std::vector<matrix>& all) {
  std::vector<float> e;
  for (const matrix& m : all)
    for (const float x : m.to_vector()) e.push_back(x);
  return e;
}

}  // namespace

TEST_CASE("concat and stack of lists: the elements of each tensor in order, and a gradient for each") {
  for (const index_t count : {1, 2, 3, 7, 8, 9, 16, 65, 130})
    for (const bool alike : {false, true}) {
      CAPTURE(count);
      auto all = matrices(count, alike);
      const index_t rows = static_cast<index_t>(elements_of(all).size()) / 3;
      const auto weights = eval(randn<float>(extents<dyn, 3>{rows, 3}, {.seed = 99}));
      const auto check = [&](auto expression, const shape& made) {
        CHECK(eval(expression).extents() == made);
        CHECK(eval(expression).to_vector() == elements_of(all));
        tape steps;
        const auto y = steps.eval(expression);
        CHECK(y.to_vector() == elements_of(all));
        steps.backward(steps.eval(sum(reshape<dyn, 3>(y) * weights)));
        std::vector<float> gradients;
        for (matrix& m : all) {
          REQUIRE(m.grad().extents() == m.extents());
          for (const float g : m.grad().to_vector()) gradients.push_back(g);
          m.zero_grad();
        }
        CHECK(gradients == weights.to_vector());
      };
      check(concat<0>(all), {2, {rows, 3}});
      if (alike) check(stack<0>(all), {3, {count, 2, 3}});
    }
}

TEST_CASE("other dims, other types, and lists inside of expressions") {
  const auto all = matrices(5, true);
  CHECK(eval(concat<1>(all)).to_vector() ==
        eval(concat<1>(all[0], all[1], all[2], all[3], all[4])).to_vector());
  CHECK(eval(concat<-1>(all)).extents() == shape{2, {2, 15}});
  CHECK(eval(stack<1>(all)).to_vector() ==
        eval(stack<1>(all[0], all[1], all[2], all[3], all[4])).to_vector());
  CHECK(eval(stack<-1>(all)).to_vector() ==
        eval(stack<2>(all[0], all[1], all[2], all[3], all[4])).to_vector());
  CHECK(eval(stack<0>(all)[3]).to_vector() == all[3].to_vector());
  CHECK(eval(concat<0>(all) * 2.0f + 1.0f).to_vector() ==
        eval(concat<0>(all[0], all[1], all[2], all[3], all[4]) * 2.0f + 1.0f).to_vector());
  std::vector<tensor<std::int64_t, extents<>>> numbers;
  for (std::int64_t i = 0; i < 11; ++i) numbers.push_back(full<std::int64_t>(extents<>{}, i * i));
  CHECK(eval(stack<0>(numbers)).to_vector() ==
        std::vector<std::int64_t>{0, 1, 4, 9, 16, 25, 36, 49, 64, 81, 100});
  std::vector<tensor<bool, extents<2>>> bits(3, full<bool>(extents<2>{}, true));
  CHECK(eval(concat<0>(bits)).extents() == shape{1, {6}});
  std::vector<tensor<bfloat16, extents<dyn>>> parts(9, full<bfloat16>(extents<dyn>{0}, bfloat16(1)));
  CHECK(eval(concat<0>(parts)).size() == 0);
}

TEST_CASE("a tensor that stands in a list twice gets both gradients; data gets none") {
  matrix x(ones<float>(extents<dyn, 3>{2, 3}));
  const std::vector<matrix> twice{x, x, x};
  tape steps;
  steps.backward(steps.eval(sum(concat<0>(twice) * full<float>(extents<dyn, 3>{6, 3}, 0.5f))));
  CHECK(x.grad().to_vector() == std::vector<float>(6, 1.5f));
  x.zero_grad();
  const std::vector<tensor<float, extents<dyn, 3>>> data{tensor<float, extents<dyn, 3>>(x)};
  const auto y = steps.eval(sum(stack<0>(data)) + sum(x));
  steps.backward(y);
  CHECK(x.grad().to_vector() == std::vector<float>(6, 1));
}

TEST_CASE("parameters in a list are trained") {
  struct two {
    std::vector<parameter<extents<3>>> rows = {make_parameter(extents<3>{}, init::uniform(1)),
                                               make_parameter(extents<3>{}, init::uniform(1))};
  } model;
  tape steps;
  steps.backward(steps.eval(sum(stack<0>(model.rows) * 2.0f + sum(concat<0>(model.rows)))));
  for (const auto& p : model.rows) CHECK(p.grad().to_vector() == std::vector<float>(3, 2 + 6));
}

TEST_CASE("a loop that decides how often it repeats: outputs of its steps as one sequence") {
  lstm_cell<3, 4> cell;
  initialize(cell, 1);
  const auto x = eval(randn<float>(extents<5, 2, 3>{}, {.seed = 2}));
  tape steps;
  std::vector<variable<float, extents<2, 4>>> outputs;
  variable<float, extents<2, 2, 4>> state(zeros<float>(extents<2, 2, 4>{}));
  for (index_t t = 0; t < 5; ++t) {
    state = steps.eval(cell(x[t], state));
    outputs.push_back(steps.eval(state[0] * 1.0f));
  }
  const auto y = steps.eval(mean(square(stack<0>(outputs))));
  steps.backward(y);
  const auto seen = cell.weight_hh.grad().to_vector();
  zero_grad(cell);
  lstm<3, 4> whole;
  whole.weight_ih_l0 = cell.weight_ih, whole.weight_hh_l0 = cell.weight_hh;
  whole.bias_ih_l0 = cell.bias_ih, whole.bias_hh_l0 = cell.bias_hh;
  tape other;
  const auto z = other.eval(mean(square(whole(x))));
  other.backward(z);
  CHECK(y.item() == doctest::Approx(z.item()));
  const auto expected = cell.weight_hh.grad().to_vector();
  for (std::size_t i = 0; i < seen.size(); ++i) CHECK(seen[i] == doctest::Approx(expected[i]).epsilon(1e-5));
}

TEST_CASE("lists that do not fit are errors") {
  CHECK_THROWS_WITH_AS(concat<0>(std::vector<matrix>{}), "weft: concat: the list is empty", shape_error);
  CHECK_THROWS_WITH_AS(stack<0>(std::vector<matrix>{}), "weft: stack: the list is empty", shape_error);
  using any = tensor<float, extents<dyn, dyn>>;
  const std::vector<any> odd{ones<float>(extents<2, 3>{}), ones<float>(extents<2, 4>{})};
  CHECK_THROWS_WITH_AS(eval(concat<0>(odd)),
                       "weft: concat: operands of shapes [2, 3] and [2, 4]: extents 3 and 4 must be equal",
                       shape_error);
  CHECK(eval(concat<1>(odd)).extents() == shape{2, {2, 7}});
  CHECK_THROWS_AS(eval(stack<0>(odd)), shape_error);
  auto all = matrices(3, true);
  const auto written = concat<0>(all);
  all[1].copy_from(std::vector<float>(6, 0));
  CHECK_THROWS_WITH_AS(
      eval(written), "weft: operand 1 of shape [2, 3] was changed in place after the expression was written",
      value_error);
}

TEST_CASE("a compiled list is read as it is at each call") {
  std::vector<tensor<float, extents<2>>> list{ones<float>(extents<2>{}), zeros<float>(extents<2>{})};
  const auto joined = compile(concat<0>(list));
  const auto stacked = compile(stack<0>(list) * 2.0f);
  CHECK(joined().to_vector() == std::vector<float>{1, 1, 0, 0});
  list[0].copy_from({5, 6});
  CHECK(joined().to_vector() == std::vector<float>{5, 6, 0, 0});
  CHECK(stacked().to_vector() == std::vector<float>{10, 12, 0, 0});
}
