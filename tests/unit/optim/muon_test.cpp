// SPDX-License-Identifier: MIT
// Muon in models: the parameters that it leaves to AdamW, other element types, and ranks.
// agree/optimizers_test compares its formula with PyTorch's.
#include <doctest/doctest.h>

#include <cmath>

#include <weft/comm/threads.hpp>
#include <weft/optim/muon.hpp>
#include <weft/parallel/tensor_parallel.hpp>
#include <weft/weft.hpp>

#include "../../compare.hpp"
#include "../../elements.hpp"
#include "../parallel/divided_net.hpp"

using namespace weft;

namespace {

struct layer {
  parameter<extents<6, 4>> weight = make_parameter(extents<6, 4>{}, init::uniform(0.5));
  parameter<extents<6>> bias = make_parameter(extents<6>{}, init::uniform(0.5));
  parameter<extents<5, 4>> table = make_parameter(extents<5, 4>{}, init::uniform(0.5));
};

template <class Loss, class Optimizer>
void train(layer& m, Optimizer& optimizer, Loss loss) {
  for (int i = 0; i < 3; ++i) {
    tape steps;
    steps.backward(steps.eval(loss(m)));
    optimizer.step(m);
  }
}
auto everything(const layer& m) {
  const auto x = randn<float>(extents<3, 4>{}, {.seed = 1});
  return mean(square(matmul(x, transpose(m.weight)) + m.bias)) + mean(square(m.table));
}

/// The singular values of a two-column matrix, the larger one first.
std::pair<double, double> singular_values(const std::vector<double>& m) {
  double a = 0, b = 0, c = 0;
  for (std::size_t i = 0; i < m.size(); i += 2) {
    a += m[i] * m[i];
    b += m[i] * m[i + 1];
    c += m[i + 1] * m[i + 1];
  }
  const double middle = (a + c) / 2, half = std::sqrt((a - c) * (a - c) / 4 + b * b);
  return {std::sqrt(middle + half), std::sqrt(std::max(middle - half, 0.0))};
}

}  // namespace

TEST_CASE("Muon: other parameters are AdamW's") {
  layer m, by_adamw = clone(m);
  muon optimizer{
      .lr = 0.1, .uses = [](const std::string& name) { return name != "table"; }, .others = {.lr = 0.02}};
  adamw plain{.lr = 0.02};
  train(m, optimizer, everything);
  train(by_adamw, plain, everything);
  CHECK(m.table.to_vector() == by_adamw.table.to_vector());
  CHECK(m.weight.to_vector() != by_adamw.weight.to_vector());
  CHECK(optimizer.state.contains("momentum_buffer", "weight"));
  CHECK(!optimizer.state.contains("momentum_buffer", "table"));
  CHECK(optimizer.state.contains("exp_avg", "bias"));
  CHECK(optimizer.others.steps == 0);
}

TEST_CASE("Muon: the singular values of an update are near the rate, whatever those of the gradient") {
  const auto update_of = [&]<element T>(T, double scale) {
    struct {
      parameter<extents<7, 2>, T> weight{zeros<T>(extents<7, 2>{})};
    } m;
    const auto slopes = randn<float>(extents<7, 2>{}, {.seed = 3});
    tensor<T, extents<7, 2>> g = eval(cast<T>(slopes * from<float>(extents<2>{}, {1, 0.05f}) * float(scale)));
    m.weight.state()->grad = g.state();
    muon optimizer{.lr = 1,
                   .weight_decay = 0,
                   .momentum = 0,
                   .nesterov = false,
                   .adjust_lr = muon::adjustment::match_rms_adamw};
    optimizer.step(m);
    std::vector<double> all;
    for (const T x : m.weight.to_vector()) all.push_back(static_cast<double>(x) / (0.2 * std::sqrt(7.0)));
    return singular_values(all);
  };
  const auto check = [](std::pair<double, double> s) {
    CHECK(s.first < 1.3);
    CHECK(s.second > 0.6);
  };
  check(update_of(float{}, 1));
  check(update_of(float{}, 1e-4));
  check(update_of(double{}, 1e3));
  check(update_of(bfloat16{}, 1));
  check(update_of(float16{}, 1));
}

TEST_CASE("Muon: a gradient of zeros") {
  layer m;
  const auto before = m.weight.to_vector();
  m.weight.state()->grad = zeros<float>(extents<6, 4>{}).state();
  muon optimizer{.weight_decay = 0};
  optimizer.step(m);
  CHECK(m.weight.to_vector() == before);
}

TEST_CASE("Muon: data parallelism, sharded parameters and layers") {
  using divided_model::net;
  const auto trained = []<class Plan>(communicator& ranks, const mesh_sizes& sizes, Plan) {
    net model = net::create(2);
    initialize(model, 3);
    muon optimizer{.lr = 0.01};
    auto run = bind<Plan>(model, optimizer, ranks, sizes);
    const index_t data = sizes.dp * sizes.fsdp;
    for (int step = 0; step < 3; ++step)
      run.step(2 / data, [&](index_t j) {
        const index_t number = run.micro_batch(j, 2 / data) + 2 * step;
        return cross_entropy(model(divided_model::batch(number, 0)), divided_model::batch(number, 1));
      });
    return test::elements_of(run.full());
  };
  self_communicator alone;
  const auto expected = trained(alone, {}, policy<strategy::mesh<dp>>{});
  run_ranks(2, [&](communicator& ranks) {
    const auto of_two = trained(ranks, {.dp = 2}, policy<strategy::mesh<dp>>{});
    CHECK(test::matches(of_two, expected, {.absolute = 1e-3}));
    const auto of_shards = trained(ranks, {.fsdp = 2}, policy<strategy::mesh<fsdp<>>>{});
    CHECK(test::matches(of_shards, expected, {.absolute = 1e-3}));
    const auto of_parts = trained(ranks, {.tp = 2}, policy<strategy::mesh<tp<>>>{});
    CHECK(test::matches(of_parts, expected, {.absolute = 1e-3}));
  });
}
