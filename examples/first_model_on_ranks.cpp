// SPDX-License-Identifier: MIT
// The first model on many ranks: one process, threads, or processes over TCP or MPI, by how it is started.
//
//   WEFT_RANKS=2 first_model_on_ranks
//   launch -n 2 first_model_on_ranks
//   mpirun -n 2 first_model_on_ranks
#include <cstdio>

#include <weft/comm/run_world.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/weft.hpp>

using namespace weft;

struct mlp {
  linear<2, 32> hidden;
  linear<32, 2> output;
  auto operator()(expression auto x) const { return output(relu(hidden(x))); }
};

using plan = policy<strategy::data_parallel>;  // or strategy::fully_sharded<3>: the one line that changes

int main(int argc, char** argv) {
  return run_world(argc, argv, [](communicator& ranks) {
    mlp model;
    adamw optimizer{.lr = 1e-2};
    auto run = bind<plan>(model, optimizer, ranks);
    const auto rank = static_cast<std::uint64_t>(ranks.rank());
    auto points = randn<float>(extents<dyn, 2>{1000 / ranks.size(), 2}, {.seed = rank});  // its own data
    auto inside = eval(cast<std::int32_t>(sum(square(points), dims<1>) < 1.4f), run);
    for (int step = 0; step <= 300; ++step) {
      tape steps(run);
      auto loss = steps.eval(cross_entropy(model(points), inside));
      steps.backward(loss);
      run.step();
      if (step % 100 == 0 && rank == 0) std::printf("step %3d  loss %.4f\n", step, loss.item());
    }
  });
}
