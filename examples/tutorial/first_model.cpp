// SPDX-License-Identifier: MIT
// docs/getting_started.md: a first model, trained on data that the program makes.
// [all]
#include <cstdio>

#include <weft/weft.hpp>
using namespace weft;

struct classifier {
  linear<2, 32> hidden;
  linear<32, 2> output;
  auto operator()(expression auto x) const { return output(relu(hidden(x))); }
};

int main() {
  // 512 points of the plane; the label says whether a point lies inside a circle.
  auto points = randn<float>(extents<dyn, 2>{512, 2});
  auto labels = eval(cast<std::int32_t>(sum(square(points), dims<1>) < 1.0f));

  classifier model;
  initialize(model, 1);
  adamw optimizer{.lr = 1e-2};
  for (int step = 1; step <= 200; ++step) {
    tape steps;
    auto loss = steps.eval(cross_entropy(model(points), labels));
    steps.backward(loss);
    optimizer.step(model);
    if (step % 50 == 0) std::printf("step %d  loss %.2f\n", step, loss.item());
  }
  auto right = eval(mean(cast<float>(argmax<1>(model(points)) == labels)));
  std::printf("accuracy %.2f\n", right.item());
}
// [/all]
