// SPDX-License-Identifier: MIT
// What the main functions of docs/cookbook/ranks.md run on each rank.
#pragma once

#include <cstdio>

#include <weft/parallel/bind.hpp>
#include <weft/weft.hpp>

// [train]
struct mlp {
  weft::linear<16, 32> hidden;
  weft::linear<32, 4> output;
  auto operator()(weft::expression auto x) const { return output(relu(hidden(x))); }
};

inline void train(weft::communicator& ranks) {
  using namespace weft;
  using plan = policy<strategy::data_parallel>;
  const device where(std::make_shared<cpu::cpu_backend>(1));   // one thread for each rank
  mlp model;
  to(model, where);
  initialize(model, 1);
  adamw optimizer{.lr = 1e-2};
  auto run = bind<plan>(model, optimizer, ranks);
  for (std::uint64_t step = 1; step <= 30; ++step) {
    const auto rank = static_cast<std::uint64_t>(ranks.rank());
    auto x = randn<float>(extents<8, 16>{}, {.seed = step, .stream = rank}, where);
    tape steps(run);
    auto loss = steps.eval(mean(square(model(x) - 1.0f)));
    steps.backward(loss);
    run.step();
    if (ranks.rank() == 0 && step % 10 == 0)
      std::printf("step %d  loss %.2f\n", static_cast<int>(step), loss.item());
  }
}
// [/train]
