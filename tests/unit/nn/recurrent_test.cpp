// SPDX-License-Identifier: MIT
// Recurrent layers: names, sizes, types, and where they may be used. agree/recurrent_test compares values and
// gradients with PyTorch's.
#include <doctest/doctest.h>

#include <cmath>

#include <weft/weft.hpp>

#include "../../compare.hpp"

using namespace weft;

namespace {

template <class M>
std::string names_of(const M& m) {
  std::string all;
  for (const auto& [name, p] : state_dict(m)) all += name + " " + to_string(p->extents) + " ";
  return all;
}

/// A sequence through two layers, and a linear layer of the outputs.
struct stacked {
  lstm<3, 5> first;
  gru<5, 4> second;
  linear<4, 2> head;
  auto operator()(expression auto x) const { return head(tanh(second(first(x)))); }
};

template <class M>
std::vector<std::vector<float>> gradients_of(const M& m) {
  std::vector<std::vector<float>> all;
  for_each_parameter(m, [&](const std::string&, const auto& p) { all.push_back(p.grad().to_vector()); });
  return all;
}

template <class A, class B>
bool near(const A& a, const B& b, double within) {
  return bool(test::matches(test::oracle::read(a), test::oracle::read(b), {.of_largest = within}));
}

}  // namespace

TEST_CASE("recurrent layers: names, shapes and first values are PyTorch's") {
  CHECK(names_of(lstm_cell<3, 5>()) == "weight_ih [20, 3] weight_hh [20, 5] bias_ih [20] bias_hh [20] ");
  CHECK(names_of(gru_cell<>::create(3, 5)) ==
        "weight_ih [15, 3] weight_hh [15, 5] bias_ih [15] bias_hh [15] ");
  CHECK(names_of(lstm<>::create(3, 5)) ==
        "weight_ih_l0 [20, 3] weight_hh_l0 [20, 5] bias_ih_l0 [20] bias_hh_l0 [20] ");
  CHECK(names_of(gru<3, 5>()) ==
        "weight_ih_l0 [15, 3] weight_hh_l0 [15, 5] bias_ih_l0 [15] bias_hh_l0 [15] ");
  static_assert(parameter_count<lstm<3, 5>>() == 20 * (3 + 5 + 1 + 1));
  const auto within = [](const auto& layer) {  // 1 / sqrt(25)
    float most = 0;
    for_each_parameter(layer, [&](const std::string&, const auto& p) {
      for (float w : p.to_vector()) most = std::max(most, std::abs(w));
    });
    return most <= 0.2f && most > 0.19f;
  };
  CHECK(within(lstm_cell<3, 25>()));
  CHECK(within(gru_cell<3, 25>()));
  CHECK(within(lstm<3, 25>()));
  CHECK(within(gru<3, 25>()));
  CHECK(within(lstm<>::create(3, 25)));
  CHECK(within(gru<>::create(3, 25)));
  CHECK_THROWS_AS((lstm<dyn, 5>::create(3, 6)), shape_error);
  CHECK_THROWS_AS((gru_cell<3>::create(4, 6)), shape_error);
}

TEST_CASE("a sequence is its steps one after the other, with and without a tape") {
  lstm<3, 5> layer;
  initialize(layer, 2);
  const lstm_cell<3, 5> cell{layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0, layer.bias_hh_l0};
  for (const index_t length : {1, 2, 7, 8, 65}) {
    CAPTURE(length);
    const auto x = randn<float>(extents<dyn, dyn, 3>{length, 4});
    const auto states = eval(layer.states(x));
    auto state = zeros<float>(extents<2, dyn, 5>{4});
    for (index_t t = 0; t < length; ++t) {
      state = eval(cell(x[t], state));
      CHECK(near(eval(states[t]), state, 1e-6));
    }
    CHECK(eval(layer(x)).to_vector() == eval(select<1>(states, 0)).to_vector());
    const auto later = eval(layer.states(x, state));  // continues where the first part ended
    CHECK(near(eval(later[0]), eval(cell(x[0], state)), 1e-6));
    tape steps;
    CHECK(steps.eval(layer.states(x)).to_vector() == states.to_vector());
  }
}

TEST_CASE("the gradients of a sequence are those of its steps on a tape") {
  const auto x = randn<float>(extents<dyn, dyn, 3>{11, 2});
  gru<3, 5> layer;
  initialize(layer, 2);
  variable<float, extents<dyn, dyn, 3>> in(x);
  {
    tape steps;
    steps.backward(steps.eval(sum(sin(layer(in)))));
  }
  const auto whole = in.grad();
  const auto of_layer = gradients_of(layer);
  gru_cell<3, 5> cell;
  initialize(cell, 2);
  cell.weight_ih.copy_from(layer.weight_ih_l0.to_vector());
  cell.weight_hh.copy_from(layer.weight_hh_l0.to_vector());
  cell.bias_ih.copy_from(layer.bias_ih_l0.to_vector());
  cell.bias_hh.copy_from(layer.bias_hh_l0.to_vector());
  variable<float, extents<dyn, dyn, 3>> again(clone(x));
  tape steps;
  auto h = steps.eval(zeros<float>(extents<dyn, 5>{2}));
  auto loss = steps.eval(sum(h));
  for (index_t t = 0; t < 11; ++t) {
    h = steps.eval(cell(again[t], h));
    loss = steps.eval(loss + sum(sin(h)));
  }
  steps.backward(loss);
  CHECK(near(again.grad(), whole, 1e-5));
  const auto of_cell = gradients_of(cell);
  for (std::size_t p = 0; p < of_cell.size(); ++p)
    for (std::size_t i = 0; i < of_cell[p].size(); ++i)
      CHECK(of_cell[p][i] == doctest::Approx(of_layer[p][i]).epsilon(1e-4));
}

TEST_CASE("derivatives of a recurrence agree with differences, in f64") {
  using matrix = variable<double, extents<dyn, dyn>>;
  matrix w(randn<double>(extents<dyn, dyn>{8, 2}, {.seed = 1}));
  matrix v(randn<double>(extents<dyn, dyn>{6, 2}, {.seed = 2}));
  variable<double, extents<dyn>> b(randn<double>(extents<dyn>{6}, {.seed = 3}));
  variable<double, extents<dyn, dyn, dyn>> x(randn<double>(extents<dyn, dyn, dyn>{9, 3, 8})),
      y(randn<double>(extents<dyn, dyn, dyn>{3, 2, 6}));
  matrix start(randn<double>(extents<dyn, dyn>{2, 2}, {.seed = 4}));
  const auto long_memory = [&] {
    return sum(sin(detail::recurrence(detail::lstm_step<matrix>{w}, x) * 1.3));
  };
  CHECK(gradcheck(long_memory, w));
  CHECK(gradcheck(long_memory, x));
  const auto gated = [&] {
    const detail::gru_step<matrix, variable<double, extents<dyn>>> step{v, b};
    return sum(sin(detail::recurrence(step, y, start)));
  };
  CHECK(gradcheck(gated, v));
  CHECK(gradcheck(gated, b));
  CHECK(gradcheck(gated, y));
  CHECK(gradcheck(gated, start));
}

TEST_CASE("layers are stacked, learn, and stand in sequential, let and shared values") {
  stacked model;
  initialize(model, 1);
  const auto x = randn<float>(extents<dyn, dyn, 3>{6, 8});
  const auto wanted = eval(cumsum<0>(slice<2, 0, 2>(x)) * 0.2f);
  adamw optimizer{.lr = 1e-2};
  float first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    tape steps;
    const auto loss = steps.eval(mse_loss(model(x), wanted));
    steps.backward(loss);
    optimizer.step(model);
    last = loss.item();
    if (step == 0) first = last;
  }
  CHECK(last < first / 4);
  const auto expected = eval(model(x)).to_vector();
  const sequential all{model.first, model.second, [](auto h) { return tanh(h); }, model.head};
  CHECK(eval(all(x)).to_vector() == expected);
  CHECK(eval(let(x * 1.0f, [&](auto in) { return model(in); })).to_vector() == expected);
  auto h = shared(model.first(x));
  const auto twice = eval(model.second(h) + model.second(h)).to_vector();
  const auto once = eval(model.second(model.first(x))).to_vector();
  for (std::size_t i = 0; i < once.size(); ++i) CHECK(twice[i] == 2 * once[i]);
}

TEST_CASE("the value of a let may be a recurrence of static length") {
  const lstm<3, 5> first;
  const gru<5, 5> second;
  const auto squared = [](auto h) { return h * sum(h, dims<0>, keepdim); };
  const auto x = randn<float>(extents<4, 2, 3>{});
  static_assert(decltype(eval(second(first(x))))::static_shape == shape{3, {4, 2, 5}});
  tape whole;
  whole.backward(whole.eval(sum(let(second(first(x)), squared))));
  const auto gradients = gradients_of(first);
  zero_grad(first);
  tape parts;
  const auto h = parts.eval(second(first(x)));
  parts.backward(parts.eval(sum(squared(h))));
  CHECK(near(eval(let(second(first(x)), squared)), eval(squared(h)), 1e-6));
  const auto expected = gradients_of(first);
  for (std::size_t p = 0; p < expected.size(); ++p)
    for (std::size_t i = 0; i < expected[p].size(); ++i)
      CHECK(std::abs(gradients[p][i] - expected[p][i]) <= 1e-5f);
}

TEST_CASE("two layers of one type in an expression: both directions, two cells") {
  gru<3, 5> forward, backward;
  const auto x = randn<float>(extents<dyn, dyn, 3>{6, 2});
  tape steps;
  const auto both = steps.eval(forward(x) + flip<0>(backward(flip<0>(x))));
  CHECK(near(both, eval(eval(forward(x)) + flip<0>(eval(backward(eval(flip<0>(x)))))), 1e-6));
  const lstm_cell<3, 5> a, b;
  const auto s = randn<float>(extents<2, dyn, 5>{2}, {.seed = 1});
  CHECK(near(eval(a(x[0], s) - b(x[0], s)), eval(eval(a(x[0], s)) - eval(b(x[0], s))), 1e-6));
  const auto nested = a(x[0], a(x[1], a(x[2], s)));
  CHECK(near(eval(nested), eval(a(x[0], eval(a(x[1], eval(a(x[2], s)))))), 1e-6));
}

TEST_CASE("products in bf16") {
  lstm<3, 5> layer;
  initialize(layer, 1);
  const auto x = randn<float>(extents<dyn, dyn, 3>{5, 2});
  const auto exact = eval(layer(x));
  context_in<precision::bf16> mixed;
  CHECK(near(eval(layer(x), mixed), exact, 2e-2));
  CHECK(eval(layer(x), mixed).to_vector() != exact.to_vector());
}

TEST_CASE("what is wrong is said") {
  const lstm<3, 5> layer;
  const auto none = zeros<float>(extents<dyn, dyn, 3>{0, 2});
  CHECK_THROWS_WITH_AS(eval(layer(none)), "weft: lstm: the sequence has no positions: its first extent is 0",
                       shape_error);
  const auto x = zeros<float>(extents<dyn, dyn, 3>{4, 2});
  CHECK_THROWS_AS(eval(layer(x, zeros<float>(extents<dyn, dyn, dyn>{2, 3, 5}))), shape_error);
  CHECK_THROWS_AS(eval(layer(x, zeros<float>(extents<dyn, dyn, dyn>{1, 2, 5}))), shape_error);
}

namespace {
struct tripled {
  auto operator()(expression auto x) const { return x * 3.0f; }
};
struct step_of_blocks {
  repeat<tripled> blocks;
  static constexpr shape state_of(const shape& element) { return element; }
  auto operator()(expression auto x, expression auto h) const { return blocks(x + h) + x; }
};
}  // namespace

TEST_CASE("a step may contain blocks") {
  variable<float, extents<3, 1>> x(from(extents<3, 1>{}, {1.f, 2.f, 3.f}));
  step_of_blocks step;
  step.blocks.blocks.resize(1);
  tape steps;
  const auto y = steps.eval(recurrence_node<step_of_blocks, decltype(x)>{{}, x, {}, step});
  CHECK(y.to_vector() == std::vector<float>{4, 20, 72});  // 3 (x + h) + x
  steps.backward(steps.eval(sum(y)));
  CHECK(x.grad().to_vector() == std::vector<float>{4 + 12 + 36, 4 + 12, 4});
}

TEST_CASE("a first state of another shape is an error that says both") {
  const auto x = randn<float>(extents<dyn, dyn, 3>{4, 2, 3});
  const gru<3, 5> of_gru;
  CHECK_THROWS_WITH_AS(eval(of_gru(x, zeros<float>(extents<dyn, 5>{1, 5}))),
                       "weft: gru: the first state has the shape [1, 5], but later states the shape [2, 5]",
                       shape_error);
  const lstm<3, 5> of_lstm;
  CHECK_THROWS_WITH_AS(
      eval(of_lstm(x, zeros<float>(extents<dyn, dyn, dyn>{3, 2, 5}))),
      "weft: lstm: the first state has the shape [3, 2, 5], but later states the shape [2, 2, 5]",
      shape_error);
}

TEST_CASE("a state of another batch, or of other than two values, is an error of the cell") {
  const lstm_cell<3, 5> of_lstm;
  const gru_cell<3, 5> of_gru;
  const auto x = randn<float>(extents<dyn, 3>{4, 3});
  using state_of_lstm = tensor<float, extents<dyn, dyn, dyn>>;
  const auto refused = [&](const char* why, index_t values, index_t batch) {
    const state_of_lstm state(shape{3, {values, batch, 5}});
    CHECK_THROWS_WITH_AS(eval(of_lstm(x, state)), why, shape_error);
  };
  refused("weft: lstm_cell: operands of shapes [4, 3] and [3, 4, 5]: extents 3 and 2 must be equal", 3, 4);
  refused("weft: lstm_cell: operands of shapes [4, 3] and [2, 1, 5]: extents 4 and 1 must be equal", 2, 1);
  CHECK_THROWS_WITH_AS(
      eval(of_lstm(x, zeros<float>(extents<2, 1, 5>{}))),
      "weft: lstm_cell: operands of shapes [4, 3] and [2, 1, 5]: extents 4 and 1 must be equal", shape_error);
  CHECK_THROWS_WITH_AS(eval(of_gru(x, zeros<float>(extents<1, 5>{}))),
                       "weft: gru_cell: operands of shapes [4, 3] and [1, 5]: extents 4 and 1 must be equal",
                       shape_error);
  const auto one = randn<float>(extents<3>{});  // without a batch
  CHECK(eval(of_lstm(one, zeros<float>(extents<2, 5>{}))).extents() == shape{2, {2, 5}});
  CHECK(eval(of_gru(one, zeros<float>(extents<5>{}))).extents() == shape{1, {5}});
}
