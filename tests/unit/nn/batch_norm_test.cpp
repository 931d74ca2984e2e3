// SPDX-License-Identifier: MIT
// Batch norm: names, types, which evaluations count a batch, and errors. agree/batch_norm_test compares
// values, gradients and running statistics with PyTorch's.
#include <doctest/doctest.h>

#include <string>

#include <weft/nn/batch_norm.hpp>
#include <weft/weft.hpp>

#include "../../compare.hpp"

using namespace weft;

namespace {
using matrix = tensor<float, extents<dyn, 3>>;
matrix numbers(index_t rows, std::uint64_t seed = 1) {
  return randn<float>(extents<dyn, 3>{rows}, {.seed = seed});
}
struct normed {
  linear<3, 3> map;
  batch_normalization<3> norm;
  auto operator()(expression auto x) const { return norm(map(x)); }
};
template <class E>
std::string refusal_of(const E& e) {
  try {
    eval(e);
  } catch (const error& refused) { return refused.what(); }
  return "";
}
}  // namespace

TEST_CASE("batch norm: names, shapes and first values are PyTorch's") {
  std::string all;
  for (const auto& [name, p] : state_dict(batch_normalization<>::create(5)))
    all += name + " " + to_string(p->extents) + " ";
  CHECK(all == "weight [5] bias [5] running_mean [5] running_var [5] num_batches_tracked [] ");
  static_assert(parameter_count<batch_normalization<7>>() == 14);
  const batch_normalization<2> norm;
  CHECK(norm.weight.to_vector() == std::vector<float>{1, 1});
  CHECK(norm.bias.to_vector() == std::vector<float>{0, 0});
  CHECK(norm.running_mean.to_vector() == std::vector<float>{0, 0});
  CHECK(norm.running_var.to_vector() == std::vector<float>{1, 1});
  CHECK(norm.num_batches_tracked.item() == 0);
}

TEST_CASE("batch norm: a batch counts once in a statement, and in training alone") {
  batch_normalization<3> norm;
  const auto counted = [&] { return norm.num_batches_tracked.item(); };
  const auto h = norm(numbers(8));
  CHECK(counted() == 0);  // nothing is evaluated
  eval(h + exp(h) * h);
  CHECK(counted() == 1);
  eval(h);
  CHECK(counted() == 2);
  norm.num_batches_tracked.copy_from(std::vector<std::int64_t>{1});
  eval(norm(numbers(8)) + norm(numbers(8, 2)));  // two calls
  CHECK(counted() == 3);
  const auto y = shared(norm(numbers(8)));
  eval(repeat<linear<3, 3>>{{linear<3, 3>()}}(y) + y);
  CHECK(counted() == 4);
  {
    tape steps;
    variable<float, extents<dyn, 3>> x(numbers(8));
    steps.backward(steps.eval(sum(norm(x) * norm.weight)));
    CHECK(counted() == 5);
    CHECK(x.grad().defined());
  }
  norm.training = false;
  const auto mean_before = norm.running_mean.to_vector();
  eval(norm(numbers(8)));
  CHECK(counted() == 5);
  CHECK(norm.running_mean.to_vector() == mean_before);
}

TEST_CASE("batch norm: training computes programs again without counting a batch again") {
  normed model;
  initialize(model, 1);
  context c;
  c.recompute_programs = 3;
  tape steps(c);
  steps.backward(steps.eval(sum(square(model(numbers(8))))));
  CHECK(model.norm.num_batches_tracked.item() == 1);
}

TEST_CASE_TEMPLATE("batch norm: narrow elements are computed in f32 and rounded once", T, bfloat16, float16) {
  batch_normalization<3> norm, same;
  const auto x = eval(cast<T>(numbers(50)));
  const auto y = eval(norm(x));
  CHECK(test::oracle::read(y).f == test::oracle::read(eval(cast<T>(same(cast<float>(x))))).f);
  CHECK(norm.running_var.to_vector() == same.running_var.to_vector());
}

TEST_CASE("batch norm: no channels, no batch, and what is refused") {
  batch_normalization<> none = batch_normalization<>::create(0), norm = batch_normalization<>::create(3);
  CHECK(eval(none(zeros<float>(extents<dyn, dyn>{4, 0}))).to_vector().empty());
  const tensor<float, extents<dyn, dyn>> four(randn<float>(extents<dyn, dyn>{2, 4}));
  CHECK(refusal_of(norm(four)) ==
        "weft: batch_norm: the operand [2, 4] has 4 channels, but the running statistics have 3");
  CHECK(refusal_of(norm(numbers(1))) ==
        "weft: batch_norm: a batch [1, 3] has fewer than 2 elements for each channel, but training needs "
        "their variance");
  CHECK(refusal_of(norm(numbers(0))).find("fewer than 2 elements for each channel") != std::string::npos);
  for (const double wrong : {-0.1, 1.1, std::numeric_limits<double>::quiet_NaN()}) {
    norm.momentum = wrong;
    CHECK(refusal_of(norm(numbers(4))).find("weft: batch_norm: the momentum is") == 0);
  }
  CHECK(norm.num_batches_tracked.item() == 0);
  norm.momentum = 0.1;
  norm.training = false;
  CHECK(eval(norm(numbers(1))).size() == 3);
  CHECK(eval(norm(numbers(0))).size() == 0);
}
