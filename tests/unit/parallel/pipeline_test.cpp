// SPDX-License-Identifier: MIT
// Pipelines against one rank: the same losses, norms and parameters under every schedule.
#include "training.hpp"

#include <weft/parallel/pipeline.hpp>

using namespace training;

namespace {

/// The training of `steps` steps on the ranks of a mesh.
template <class Plan>
outcome train_on_stages(communicator& ranks, const mesh_sizes& sizes, index_t per_rank, int steps,
                        const pipeline_options& p = {}) {
  const device where = one_thread();
  net model = net::create(where);
  initialize(model, 5);
  adamw optimizer{.lr = 1e-2};
  auto run = bind<Plan>(model, optimizer, ranks, sizes, p);
  run.seed = 3;
  outcome result;
  const index_t total = per_rank * sizes.dp * sizes.fsdp;
  for (int s = 0; s < steps; ++s) {
    const step_result r = run.step(
        per_rank,
        [&](index_t j) {
          const index_t g = s * total + (s == 0 ? j : run.micro_batch(j, per_rank));
          return cross_entropy(model(batch_of(g, where, 0)), batch_of(g, where, 1));
        },
        {.clip = 0.5});
    result.losses.push_back(r.loss);
    result.norms.push_back(r.norm);
  }
  result.parameters = elements_of(run.full());
  return result;
}

}  // namespace

TEST_CASE("pipelines: first") {
  using plan = policy<strategy::mesh<pp<>, dp>>;
  std::vector<outcome> one(1), two(2);
  run_ranks(1, [&](communicator& ranks) { one[0] = train_on_stages<plan>(ranks, {}, 4, 3); });
  run_ranks(2, [&](communicator& ranks) {
    two[static_cast<std::size_t>(ranks.rank())] = train_on_stages<plan>(ranks, {.pp = 2}, 4, 3);
  });
  CHECK(test::largest_relative_difference(two[0].losses, one[0].losses) < 1e-5);
  CHECK(test::largest_relative_difference(two[0].norms, one[0].norms) < 1e-5);
  CHECK(two[1].parameters == two[0].parameters);
  for (std::size_t i = 0; i < 3; ++i) MESSAGE(one[0].losses[i] << " " << two[0].losses[i] << " " << one[0].norms[i] << " " << two[0].norms[i]);
}
