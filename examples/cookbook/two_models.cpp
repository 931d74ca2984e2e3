// SPDX-License-Identifier: MIT
// Two models and their runs: a generator and a discriminator.
#include <cstdio>
#include <vector>

#include <weft/comm/threads.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/weft.hpp>
using namespace weft;

// [models]
struct generator {
  linear<2, 8> in;
  linear<8, 3> out;
  auto operator()(expression auto noise) const { return out(relu(in(noise))); }
};

struct discriminator {
  linear<3, 8> in;
  linear<8, 1> out;
  auto operator()(expression auto x) const { return out(relu(in(x))); }
};
// [/models]

// [train]
double train(communicator& ranks) {
  const device where(std::make_shared<cpu::cpu_backend>(1));  // each rank is a thread with its own memory
  generator g;
  discriminator d;
  to(g, where), to(d, where);
  initialize(g, 1), initialize(d, 2);
  adamw of_g{.lr = 1e-2}, of_d{.lr = 1e-2};  // an optimizer for each run
  using plan = policy<strategy::fully_sharded<1>>;
  auto run_g = bind<plan>(g, of_g, ranks);
  auto run_d = bind<plan>(d, of_d, ranks);
  double loss = 0;
  for (std::uint64_t s = 0; s < 20; ++s) {
    const std::uint64_t batch = 2 * s + static_cast<std::uint64_t>(ranks.rank());
    const auto real = eval(randn<float>(extents<16, 3>{}, {.seed = 100 + batch}, where) * 0.5f + 1.f, run_d);
    const auto noise = randn<float>(extents<16, 2>{}, {.seed = 200 + batch}, where);
    {
      const auto fake = eval(g(noise), run_g);  // no tape: a constant for the discriminator
      tape steps(run_d);
      steps.backward(steps.eval(mean(softplus(-d(real))) + mean(softplus(d(fake)))));
      run_d.step();
    }
    tape steps(run_g);
    const auto value = steps.eval(mean(softplus(-d(g(noise)))));
    steps.backward(value);
    run_g.step();
    run_d.zero_grad();  // drops what this pass left in the discriminator
    loss = value.item();
  }
  ranks.all_reduce(std::span(&loss, 1), reduction::average).wait();
  return loss;
}
// [/train]

int main() {
  run_ranks(2, [](communicator& ranks) {
    const double loss = train(ranks);
    if (ranks.rank() == 0) std::printf("loss of the generator %.3f\n", loss);
  });
}
