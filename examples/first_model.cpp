// SPDX-License-Identifier: MIT
// A first model: is a point inside the circle? Data, model, training loop.
#include <cstdio>

#include <weft/weft.hpp>

using namespace weft;

struct mlp {  // a model is a plain struct
  linear<2, 32> hidden;
  linear<32, 2> output;
  auto operator()(expression auto x) const { return output(relu(hidden(x))); }
};

int main() {
  auto points = randn<float>(extents<dyn, 2>{1000, 2});  // the batch is a run-time extent
  auto inside = eval(cast<std::int32_t>(sum(square(points), dims<1>) < 1.4f));

  mlp model;
  adamw optimizer{.lr = 1e-2};
  for (int step = 0; step <= 300; ++step) {
    tape steps;
    auto loss = steps.eval(cross_entropy(model(points), inside));
    steps.backward(loss);
    optimizer.step(model);
    if (step % 100 == 0) std::printf("step %3d  loss %.4f\n", step, loss.item());
  }
  auto right = eval(mean(cast<float>(argmax<1>(model(points)) == cast<std::int64_t>(inside))));
  std::printf("%.1f%% of the points are classified correctly\n", 100 * right.item());
}
