// SPDX-License-Identifier: MIT
// The code that docs/strategies.md shows for sequences with sharded positions.
#include <cmath>
#include <cstdio>

#include <weft/comm/threads.hpp>
#include <weft/parallel/context_parallel.hpp>
#include <weft/weft.hpp>

#include "../gpt2.hpp"
#include "../section.hpp"
using namespace weft;

int main() {
  section("ring");
  using tokens = tensor<std::int32_t, extents<dyn, dyn>>;
  constexpr index_t length = 13;
  const auto text = [](index_t shift) {
    return generate<std::int32_t>(extents<dyn, dyn>{1, length},
                                  [=](index_t i) { return (i + shift) * (i + shift) % 7; });
  };
  const tokens x = text(0), y = text(1);
  double losses[2];
  for (const int ranks : {1, 2})
    run_ranks(ranks, [&](communicator& all) {
      auto model = gpt2::model<>::create({.layers = 1, .heads = 2, .width = 8, .context = length});
      initialize(model, 1);
      sgd optimizer{.lr = 0.1};
      double loss = 0;
      // [ring]
      using plan = policy<strategy::mesh<dp, cp<ring>>>;
      auto run = bind<plan>(model, optimizer, all, {.cp = all.size()});
      for (int step = 0; step < 20; ++step) {
        const auto of_batch = [&](index_t) {
          const context_part own = run.part_of_context(length);  // this rank's positions
          return model.loss(own.of(x), own.of(y), own.positions());
        };
        loss = run.step(1, of_batch).loss;
      }
      // [/ring]
      if (all.rank() == 0) losses[ranks - 1] = loss;
    });
  std::printf("two ranks train as one: %s\n", std::abs(losses[0] - losses[1]) < 1e-5 ? "yes" : "no");
}
