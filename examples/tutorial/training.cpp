// SPDX-License-Identifier: MIT
// Chapter 5 of the tutorial, docs/tutorial/training.md: a dataset, a loader and a training loop.
#include <cmath>
#include <cstdio>
#include <iostream>

#include <weft/optim/clip.hpp>
#include <weft/train/loader.hpp>
#include <weft/weft.hpp>

#include "../section.hpp"
using namespace weft;

// [dataset]
/// Points on two spirals; the label is the spiral.
struct spirals {
  using fields = std::tuple<tensor<float, extents<dyn, 2>>, tensor<std::int32_t, extents<dyn>>>;  // a batch

  index_t points;
  double phase = 0;

  index_t size() const { return points; }
  void read(index_t i, float* point, std::int32_t* label) const {
    const double part = (static_cast<double>(i / 2) + phase) * 2 / static_cast<double>(points);
    const double turn = 9.0 * part;
    const double angle = turn + (i % 2 ? 3.14159265 : 0.0);
    point[0] = static_cast<float>(turn / 3 * std::cos(angle));
    point[1] = static_cast<float>(turn / 3 * std::sin(angle));
    *label = static_cast<std::int32_t>(i % 2);
  }
};
// [/dataset]

struct mlp {
  linear<2, 64> first;
  linear<64, 64> second;
  linear<64, 2> output;
  auto operator()(expression auto x) const { return output(relu(second(relu(first(x))))); }
};

// [accuracy]
float accuracy(const mlp& model, loader<spirals>& data) {
  float right = 0;
  for (auto [points, labels] : data)
    right += eval(sum(cast<float>(argmax<1>(model(points)) == labels))).item();
  return right / static_cast<float>(data.samples());
}
// [/accuracy]

int main() {
  section("loader");
  // [loader]
  loader batches(spirals{500}, {.batch = 50, .shuffle = true, .seed = 1});
  auto [points, labels] = batches.next();
  std::cout << to_string(points.extents()) << ' ' << to_string(labels.extents()) << '\n';
  // [/loader]
  batches.seek(0);

  section("loop");
  // [loop]
  mlp model;
  initialize(model, 1);
  adamw optimizer{.lr = 3e-3, .weight_decay = 1e-4};
  const schedule rate{.kind = schedule::shape::cosine, .lr = 3e-3, .warmup = 10, .steps = 400};
  int step = 0;
  for (int epoch = 1; epoch <= 40; ++epoch) {
    float total = 0;
    for (auto [x, y] : batches) {
      optimizer.lr = rate.at(step++);
      tape steps;
      auto loss = steps.eval(cross_entropy(model(x), y));
      steps.backward(loss);
      clip_grad_norm(model, 1.0);
      optimizer.step(model);
      total += loss.item();
    }
    if (epoch % 10 == 0) std::printf("epoch %d  loss %.2f\n", epoch, total / 10);
  }
  // [/loop]
  std::fflush(stdout);

  section("accuracy");
  // [use_accuracy]
  loader unseen(spirals{200, 0.5}, {.batch = 64});
  std::printf("accuracy %.2f\n", accuracy(model, unseen));
  // [/use_accuracy]
  std::fflush(stdout);

  section("accumulate");
  // [accumulate]
  for (int part = 0; part < 4; ++part) {                 // four batches, one update
    auto [x, y] = batches.next();
    tape steps;
    steps.backward(steps.eval(cross_entropy(model(x), y)));
  }
  optimizer.step(model, 0.25);                           // scales gradients by 1 / 4: their mean
  // [/accumulate]

  section("errors");
  // [errors]
  try {
    optimizer.step(model);                               // no backward pass since the last step
  } catch (const usage_error& error) {
    std::cout << error.what() << '\n';
  }
  // [/errors]
}
