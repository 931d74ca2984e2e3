// SPDX-License-Identifier: MIT
// The code that docs/cookbook/models.md shows for mixtures of experts.
#include <iostream>

#include <weft/nn/mixture_of_experts.hpp>
#include <weft/weft.hpp>

#include "../section.hpp"
using namespace weft;

// [mixture]
struct network {
  linear<2, 16> in;
  mixture_of_experts<16> moe =   // two of eight experts per token, without a capacity limit
      mixture_of_experts<16>::create(16, 8, {.per_row = 2}, [] { return feed_forward<16>::create(16, 32); });
  linear<16, 1> out;

  auto loss(expression auto x, expression auto y) const {
    auto h = shared(in(x));
    return mse_loss(out(h + moe(h)), y) + 0.01f * moe.balance_loss(h) + 0.001f * moe.z_loss(h);
  }
};
// [/mixture]

int main() {
  section("mixture");
  // [train]
  network model;
  initialize(model, 1);
  adamw optimizer{.lr = 1e-2};
  float loss_of_step = 0;
  for (int step = 0; step < 300; ++step) {
    auto x = rand<float>(extents<dyn, 2>{64, 2}, {.seed = static_cast<std::uint64_t>(step)});
    auto y = eval(slice<1, 0, 1>(x) * slice<1, 1, 2>(x));
    tape steps;
    auto loss = steps.eval(model.loss(x, y));
    steps.backward(loss);
    optimizer.step(model);
    loss_of_step = loss.item();
  }
  std::cout << (loss_of_step < 0.03f ? "learnt" : "not learnt") << '\n';
  // [/train]
}
