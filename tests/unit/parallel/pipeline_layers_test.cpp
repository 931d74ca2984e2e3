// SPDX-License-Identifier: MIT
// Pipeline stages with tensor parallelism: training equals that of one rank, up to the order of sums.
#include <weft/parallel/pipeline.hpp>
#include <weft/parallel/tensor_parallel.hpp>

#include "divided_training.hpp"

using namespace training;

TEST_CASE("pipelines of divided layers train as one rank does") {
  using plan = policy<strategy::mesh<pp<>, dp, tp<>>>;
  using zero_bubble = policy<strategy::mesh<pp<pipeline::zb_h1>, fsdp<3>, tp<>>>;
  const outcome one = train_layers<policy<strategy::mesh<dp>>>({});  // divides nothing
  const auto compare = [&](const outcome& o) { check_same_training(o, one); };
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
