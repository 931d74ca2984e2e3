// SPDX-License-Identifier: MIT
// A small GPT-2 that trains with context parallelism.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include <weft/comm/threads.hpp>
#include <weft/parallel/context_parallel.hpp>
#include <weft/weft.hpp>

#include "../../../examples/gpt2.hpp"
#include "../../compare.hpp"
#include "../../elements.hpp"

namespace divided_positions {

using namespace weft;

using test::largest_difference;

struct outcome {
  std::vector<double> losses, norms;  // the last loss was evaluated without a tape
  std::vector<float> parameters;
  double scale = 1;  // of the loss, at the end
};

struct options {
  int steps = 3, recompute = 0;  // programs
  double scale = 65536;          // of the loss, to begin with
  device where = default_device();
};

inline constexpr gpt2::config small{.layers = 2, .heads = 4, .width = 8, .context = 13, .vocabulary = 11};
inline constexpr index_t length = 11;  // divides evenly only by 1

using tokens = tensor<std::int32_t, extents<dyn, dyn>>;
inline tokens batch(index_t number, index_t shift, const device& where = default_device()) {
  return generate<std::int32_t>(
      extents<dyn, dyn>{2, length},
      [=](index_t i) {
        return (number * 5 + (i + shift) * (i + shift) * 3 + i / length) % small.vocabulary;
      },
      where);
}

/// Takes steps of `batches` batches; a skipped step has norm -1. Under context parallelism, the ranks along
/// cp take the same batches.
template <class Plan, class Model = gpt2::model<>>
outcome trained(communicator& ranks, const mesh_sizes& n, const gpt2::config& c = small, int batches = 2,
                const options& with = {}) {
  auto model = Model::create(c);
  initialize(model, 3);
  to(model, with.where);
  sgd optimizer{.lr = 0.1, .momentum = 0.9};
  auto run = bind<Plan>(model, optimizer, ranks, n);
  loss_scaler scaler = run.scaler();
  scaler.scale = with.scale;
  run.set_scaler(scaler);
  run.recompute_programs = with.recompute;
  const int copies = n.dp * n.fsdp * n.ep, micro = batches / copies;
  outcome o;
  const auto loss_of = [&](index_t number) {
    const tokens x = batch(number, 0, with.where), y = batch(number, 1, with.where);
    if constexpr (requires { run.part_of_context(length); }) {
      const context_part own = run.part_of_context(length);
      return model.loss(own.of(x), own.of(y), own.positions());
    } else {
      return model.loss(x, y, length);
    }
  };
  for (int step = 0; step < with.steps; ++step) {
    const step_result r = run.step(
        micro, [&](index_t j) { return loss_of(batches * step + run.micro_batch(j, micro)); }, {.clip = 0.5});
    o.losses.push_back(r.loss);
    o.norms.push_back(std::isfinite(r.norm) ? r.norm : -1);
  }
  const auto last = loss_of(0);
  std::vector<double> evaluated{run.loss_weight * static_cast<double>(eval(last, run).item())};
  ranks.all_reduce(evaluated, reduction::sum).wait();
  o.losses.push_back(evaluated[0] / ranks.size());
  o.parameters = test::elements_of(run.full());
  o.scale = run.loss_scale;
  return o;
}

/// `near`: the tolerance of losses against one rank; ten times as much for norms and parameters.
template <class Plan, class Model = gpt2::model<>>
void trains_as_one_rank(const outcome& one, const mesh_sizes& n, const gpt2::config& c = small,
                        int batches = 2, const options& with = {}, double near = 1e-5) {
  INFO(to_string(n) << ", recompute " << with.recompute);
  run_ranks(static_cast<int>(n.ranks()), [&](communicator& ranks) {
    const outcome o = trained<Plan, Model>(ranks, n, c, batches, with);
    CHECK(largest_difference(o.losses, one.losses) < near);
    CHECK(largest_difference(o.norms, one.norms) < 10 * near);
    CHECK(largest_difference(o.parameters, one.parameters) < 10 * near);
    CHECK(o.scale == one.scale);
  });
}

}  // namespace divided_positions
