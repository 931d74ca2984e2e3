// SPDX-License-Identifier: MIT
// Models sharded over ranks with a CUDA device each, over NCCL, on a fake driver and a fake NCCL: with
// layers, positions, experts and stages, the results equal those of one rank on the CPU.
#include <weft/parallel/context_pipeline.hpp>
#include <weft/parallel/expert_parallel.hpp>

#include "../../examples/gpt2_experts.hpp"
#include "../unit/parallel/divided_positions.hpp"
#include "device_ranks.hpp"
#include "fake_cuda.hpp"

using namespace divided_positions;

namespace {

/// Checks that losses, norms and parameters of ranks over NCCL equal those of one rank on the CPU, for each
/// of the meshes, which have the given axes.
template <class Model, class... Axes>
void trains_as_on_the_cpu(const gpt2::config& c, std::initializer_list<mesh_sizes> meshes) {
  constexpr int batches = 4;
  outcome one;
  run_ranks(1, [&](communicator& ranks) {
    one = trained<policy<strategy::mesh<dp>>, Model>(ranks, {}, c, batches);
  });
  for (const mesh_sizes& n : meshes) {
    INFO(to_string(n));
    device_ranks::run(
        static_cast<int>(n.ranks()), [&](communicator& ranks, communicator&, const device& where) {
          const outcome o =
              trained<policy<strategy::mesh<Axes...>>, Model>(ranks, n, c, batches, {.where = where});
          CHECK(largest_difference(o.losses, one.losses) < 1e-5);
          CHECK(largest_difference(o.norms, one.norms) < 1e-4);
          CHECK(largest_difference(o.parameters, one.parameters) < 1e-4);
        });
    CHECK(fake_cuda::misuse() == "");
  }
}

gpt2::config of_experts(double capacity_factor) {
  gpt2::config c = small;
  c.experts = 3;
  c.experts_per_token = 2;
  c.capacity_factor = capacity_factor;
  return c;
}

using dense = gpt2::model<>;
using sparse = gpt2::model_of_experts;

}  // namespace

TEST_CASE("over NCCL: positions divided, in a ring and by heads") {
  trains_as_on_the_cpu<dense, dp, cp<>>(small, {{.cp = 2}, {.cp = 3}, {.dp = 2, .cp = 2}});
  trains_as_on_the_cpu<dense, dp, cp<ulysses>>(small, {{.cp = 2}, {.cp = 4}});
}

TEST_CASE("over NCCL: layers divided, whole activations and by positions, and beside positions") {
  trains_as_on_the_cpu<dense, dp, tp<>>(small, {{.tp = 2}, {.dp = 2, .tp = 2}});
  trains_as_on_the_cpu<dense, dp, tp<activations::by_positions>>(small, {{.tp = 4}});
  trains_as_on_the_cpu<dense, dp, cp<>, tp<>>(small, {{.cp = 2, .tp = 2}});
}

TEST_CASE("over NCCL: experts divided, alone and beside positions, with a capacity") {
  trains_as_on_the_cpu<sparse, fsdp<3>, ep>(of_experts(0), {{.ep = 2}, {.fsdp = 2, .ep = 2}});
  trains_as_on_the_cpu<sparse, cp<>, ep>(of_experts(0.6), {{.cp = 2, .ep = 2}});
}

TEST_CASE("over NCCL: stages, alone and beside positions") {
  trains_as_on_the_cpu<dense, pp<>, dp, cp<>>(small, {{.pp = 2}, {.pp = 2, .cp = 2}, {.pp = 2, .dp = 2}});
}

TEST_CASE("positions on a device that no communicator reaches are refused, by name") {
  run_ranks(2, [](communicator& ranks) {
    const device where(std::make_shared<gpu::cuda_backend>(ranks.rank()));
    const options o{.where = where};
    std::string told;
    try {
      trained<policy<strategy::mesh<dp, cp<>>>>(ranks, {.cp = 2}, small, 2, o);
    } catch (const device_error& e) { told = e.what(); }
    CHECK_MESSAGE(told.find("positions can be divided only on devices whose memory messages can use") !=
                      std::string::npos,
                  told);
  });
}
