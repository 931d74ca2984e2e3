// SPDX-License-Identifier: MIT
// A multi-layer perceptron on two spirals: a model is a plain struct, a step is four lines.
//
//   train_mlp [cpu|opencl|cuda]
#include <cmath>
#include <cstdio>

#include <weft/gpu/open.hpp>
#include <weft/weft.hpp>

using namespace weft;

struct mlp {
  linear<2, 64> first;
  linear<64, 64> second;
  linear<64, 2> output;
  auto operator()(expression auto x) const { return output(relu(second(relu(first(x))))); }
};

int main(int count, char** values) {
  const device where = open_device(count > 1 ? values[1] : "cpu");
  context c(where);
  constexpr index_t points = 512;
  auto angle = [](index_t i) { return 0.02 * static_cast<double>(i / 2); };
  auto x = generate<float>(extents<dyn, 2>{points, 2}, [&](index_t i) {
    const index_t point = i / 2;
    const double turn = angle(point) + (point % 2 ? 3.14159265 : 0.0);
    return angle(point) / 5 * (i % 2 ? std::sin(turn) : std::cos(turn));
  }, where);
  auto labels = generate<std::int32_t>(extents<dyn>{points}, [](index_t i) { return i % 2; }, where);

  mlp model;
  to(model, where);
  initialize(model, 1);
  adamw optimizer{.lr = 1e-2};
  for (int step = 0; step < 400; ++step) {
    tape steps(c);
    auto loss = steps.eval(cross_entropy(model(x), labels));
    steps.backward(loss);
    optimizer.step(model, 1, c);
    if (step % 100 == 99) std::printf("step %d  loss %.4f\n", step + 1, loss.item());
  }
}
