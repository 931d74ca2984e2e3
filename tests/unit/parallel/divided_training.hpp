// SPDX-License-Identifier: MIT
// Trains a transformer with tensor parallelism, and compares with the training on one rank.
#pragma once

#include "divided_net.hpp"
#include "training.hpp"

namespace training {

/// Three steps of four micro-batches; all ranks must find the same.
template <class Plan, class Model = divided_model::net>
outcome train_layers(const mesh_sizes& sizes) {
  constexpr index_t total = 4;
  std::vector<outcome> all(static_cast<std::size_t>(sizes.ranks()));
  run_ranks(static_cast<int>(sizes.ranks()), [&](communicator& ranks) {
    auto model = Model::create(4);
    initialize(model, 5);
    sgd optimizer{.lr = 0.1, .momentum = 0.9};  // adamw amplifies rounding errors of zero gradients
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

/// Compares up to the order of sums.
inline void check_same_training(const outcome& o, const outcome& one) {
  CHECK(largest_relative_difference(o.losses, one.losses) < 1e-5);
  CHECK(largest_relative_difference(o.norms, one.norms) < 1e-4);
  CHECK(largest_difference(o.parameters, one.parameters) < 1e-5);
}

}  // namespace training
