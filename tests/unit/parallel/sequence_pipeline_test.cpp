// SPDX-License-Identifier: MIT
// Pipeline stages with tensor and sequence parallelism: training and values equal those of one rank.
#include <weft/parallel/pipeline.hpp>
#include <weft/parallel/redistribute.hpp>
#include <weft/parallel/tensor_parallel.hpp>

#include "divided_training.hpp"

using namespace training;

namespace {
using by_positions = tp<activations::by_positions>;
using plan = policy<strategy::mesh<pp<>, dp, by_positions>>;
}  // namespace

TEST_CASE("pipelines whose activations are divided by positions train as one rank does") {
  using zero_bubble = policy<strategy::mesh<pp<pipeline::zb_h1>, fsdp<3>, by_positions>>;
  const outcome one = train_layers<policy<strategy::mesh<dp>>>({});
  for (const mesh_sizes& sizes :
       {mesh_sizes{.pp = 2, .tp = 2}, mesh_sizes{.pp = 4, .tp = 3}, mesh_sizes{.pp = 2, .dp = 2, .tp = 2}}) {
    INFO(to_string(sizes));
    check_same_training(train_layers<plan>(sizes), one);
  }
  for (const mesh_sizes& sizes : {mesh_sizes{.pp = 2, .tp = 2}, mesh_sizes{.pp = 2, .fsdp = 2, .tp = 2}}) {
    INFO("zero bubble, ZeRO 3, " << to_string(sizes));
    check_same_training(train_layers<zero_bubble>(sizes), one);
  }
}

TEST_CASE("evaluation by stages: every rank has its positions of the value") {
  std::vector<float> one;
  const auto evaluated = [](communicator& ranks, const mesh_sizes& sizes) {
    auto model = divided_model::net::create(4);
    initialize(model, 5);
    sgd optimizer;
    auto run = bind<plan>(model, optimizer, ranks, sizes);
    const auto words = divided_model::batch(0, 0);
    run.prepare(cross_entropy(model(words), words), sizes.pp);
    run.begin_micro_batch(0, 0);
    const auto features = run.eval(model.h(model.words(words) + model.positions.weight));
    return gather(features, run.layer_ranks()).to_vector();
  };
  run_ranks(1, [&](communicator& ranks) { one = evaluated(ranks, {}); });
  run_ranks(4, [&](communicator& ranks) {
    CHECK(largest_difference(evaluated(ranks, {.pp = 2, .tp = 2}), one) < 1e-5);
  });
}
