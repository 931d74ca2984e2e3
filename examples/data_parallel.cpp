// SPDX-License-Identifier: MIT
// A hand-written training loop on four ranks, and the bytes that they send, a compile-time constant.
#include <cstdio>

#include <weft/comm/threads.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/weft.hpp>

using namespace weft;

struct mlp {
  linear<16, 32> hidden;
  linear<32, 4> output;
  auto operator()(expression auto x) const { return output(relu(hidden(x))); }
};

using plan = policy<strategy::data_parallel>;  // or strategy::fully_sharded<2>: the one line that changes
constexpr int ranks_in_all = 4;

// Bytes that all ranks together send per step: one all-reduce of all gradients.
constexpr index_t step_bytes =
    sent_by_all(collective::all_reduce, parameter_count<mlp>(), ranks_in_all) * size_of(dtype::f32);
static_assert(step_bytes == 2 * (16 * 32 + 32 + 32 * 4 + 4) * 3 * 4);

int main() {
  std::atomic<index_t> sent = 0;
  run_ranks(ranks_in_all, [&](communicator& ranks) {
    const device where(std::make_shared<cpu::cpu_backend>(1));
    mlp model;
    to(model, where);
    initialize(model, 1);
    adamw optimizer{.lr = 1e-2};
    auto run = bind<plan>(model, optimizer, ranks);
    const auto teacher = randn<float>(extents<16, 4>{}, {7, 0}, where);
    for (int step = 0; step < 200; ++step) {
      // Each rank draws its own samples.
      const auto x =
          randn<float>(extents<8, 16>{},
                       {static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(ranks.rank())}, where);
      const traffic before = run.groups().sent();
      tape steps(run);
      const auto loss = steps.eval(mean(square(model(x) - matmul(x, teacher))));
      steps.backward(loss);
      run.step({.clip = 1.0});
      if (step == 199) sent += (run.groups().sent() - before).of(collective::all_reduce);
      if (ranks.rank() == 0 && step % 50 == 49) std::printf("step %d  loss %.4f\n", step + 1, loss.item());
    }
  });
  std::printf("%lld bytes sent in a step, %lld expected\n", static_cast<long long>(sent.load()),
              static_cast<long long>(step_bytes));
  return sent == step_bytes ? 0 : 1;
}
