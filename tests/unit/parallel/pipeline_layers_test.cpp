// SPDX-License-Identifier: MIT
// Stages whose ranks divide layers: the training of one rank, up to the order of sums.
#include <weft/parallel/pipeline.hpp>
#include <weft/parallel/tensor_parallel.hpp>

#include "divided_net.hpp"
#include "training.hpp"

using namespace training;

namespace {

template <class Plan>
outcome train_layers(const mesh_sizes& sizes) {
  constexpr index_t total = 4;
  std::vector<outcome> all(static_cast<std::size_t>(sizes.ranks()));
  run_ranks(static_cast<int>(sizes.ranks()), [&](communicator& ranks) {
    auto model = divided_model::net::create(4);
    initialize(model, 5);
    adamw optimizer{.lr = 1e-2};
    auto run = bind<Plan>(model, optimizer, ranks, sizes);
    run.seed = 3;
    outcome& o = all[static_cast<std::size_t>(ranks.rank())];
    const index_t m = total / sizes.dp / sizes.fsdp;
    for (int s = 0; s < 3; ++s) {
      const step_result r =
          run.step(m,
                   [&](index_t j) {
                     const index_t g = s * total + run.micro_batch(j, m);
                     return cross_entropy(model(divided_model::batch(g, 0)), divided_model::batch(g, 1));
                   },
                   {.clip = 0.5});
      o.losses.push_back(r.loss);
      o.norms.push_back(r.norm);
    }
    o.parameters = elements_of(run.full());
  });
  for (const outcome& o : all) {
    CHECK(o.losses == all[0].losses);
    CHECK(o.norms == all[0].norms);
    CHECK(o.parameters == all[0].parameters);
  }
  return all[0];
}

}  // namespace

TEST_CASE("pipelines of divided layers train as one rank does") {
  using plan = policy<strategy::mesh<pp<>, dp, tp<>>>;
  using zero_bubble = policy<strategy::mesh<pp<pipeline::zb_h1>, fsdp<3>, tp<>>>;
  const outcome one = train_layers<policy<strategy::mesh<dp>>>({});  // divides nothing
  const auto compare = [&](const outcome& o) {
    CHECK(largest_relative_difference(o.losses, one.losses) < 1e-5);
    CHECK(largest_relative_difference(o.norms, one.norms) < 1e-4);
  };
  for (const mesh_sizes& sizes :
       {mesh_sizes{.tp = 2}, mesh_sizes{.pp = 2, .tp = 2}, mesh_sizes{.pp = 4, .tp = 2},
        mesh_sizes{.pp = 2, .tp = 3}, mesh_sizes{.pp = 2, .dp = 2, .tp = 2}}) {
    INFO(to_string(sizes));
    compare(train_layers<plan>(sizes));
  }
  for (const mesh_sizes& sizes : {mesh_sizes{.pp = 2, .tp = 2}, mesh_sizes{.pp = 2, .fsdp = 2, .tp = 2}}) {
    INFO("zero bubble, ZeRO 3, " << to_string(sizes));
    compare(train_layers<zero_bubble>(sizes));
  }
}
