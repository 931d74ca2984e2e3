// SPDX-License-Identifier: MIT
// Training on a custom device: the policy names the device, and nothing else changes.
#include <cstdio>

#include <weft/parallel/bind.hpp>
#include <weft/weft.hpp>

#include "custom_device.hpp"

using namespace weft;

struct mlp {
  linear<2, 16> hidden;
  linear<16, 2> output;
  auto operator()(expression auto x) const { return output(relu(hidden(x))); }
};

/// The last loss of a short training run that classifies points as inside or outside a circle.
template <class Plan>
float train() {
  mlp model;
  initialize(model, 1);
  adamw optimizer{.lr = 1e-2};
  auto run = bind<Plan>(model, optimizer);
  const device where = run.where();
  const auto x = randn<float>(extents<dyn, 2>{256, 2}, {.seed = 2}, where);
  const auto points = x.to_vector();
  const auto labels = generate<std::int32_t>(extents<dyn>{256}, [&](index_t i) {
    const auto k = static_cast<std::size_t>(2 * i);
    return points[k] * points[k] + points[k + 1] * points[k + 1] < 1;
  }, where);
  float last = 0;
  for (int step = 0; step < 200; ++step) {
    tape steps(run);
    const auto loss = steps.eval(cross_entropy(model(x), labels));
    steps.backward(loss);
    run.step();
    last = loss.item();
  }
  std::printf("%-6s  loss %.4f\n", where->name(), static_cast<double>(last));
  return last;
}

int main() {
  const float here = train<policy<on<host>>>(), there = train<policy<on<worker>>>();
  return !(here < 0.3f && there < here + 1e-3f && here < there + 1e-3f);
}
