// SPDX-License-Identifier: MIT
// The activations of a GPT step that a rank holds if layers or positions are sharded.
//
//   using plan = policy<strategy::mesh<cp<ring>>>;
//   forecast<plan>(4, {.layers = 12, .context = 16384}, 1)[0].peak    // of rank 0 of four; computes nothing
#pragma once

#include <vector>

#include <weft/comm/counting.hpp>
#include <weft/parallel/context_parallel.hpp>
#include <weft/weft.hpp>

#include "../examples/gpt2.hpp"

/// Bytes of device memory in a forward and backward pass.
struct step_memory {
  std::size_t kept = 0;  // saved by the forward pass for the backward pass
  std::size_t peak = 0;  // the peak, without tokens, parameters and their gradients
};

/// Allocates zero gradients for all parameters of a model; returns their bytes.
template <class Model>
std::size_t make_gradients(const Model& model, const weft::device& where) {
  const std::size_t before = where.memory().figures().in_use;
  for (const auto& [name, p] : weft::detail::once_each(model))
    p->grad = weft::make_zeros(where, p->extents, p->type);
  return where.memory().figures().in_use - before;
}

/// The memory of this rank in a pass that accumulates gradients without reducing them. `Plan` is a mesh of
/// one axis, tp or cp. Collective.
template <class Plan>
step_memory memory_of_step(weft::communicator& ranks, const weft::device& where, const gpt2::config& c,
                           weft::index_t batch) {
  using namespace weft;
  constexpr bool by_context = divides_context<Plan>;
  auto model = gpt2::model<>::create(c, where);
  sgd optimizer;
  mesh_sizes sizes;
  sizes.of(by_context ? mesh_axis::cp : mesh_axis::tp) = ranks.size();
  auto run = bind<Plan>(model, optimizer, ranks, sizes);
  const tensor<std::int32_t, extents<dyn, dyn>> words(make_zeros(where, {2, {batch, c.context}}, dtype::i32));
  const auto loss_of = [&] {
    if constexpr (!by_context) return model.loss(words, words, c.context);
    else {
      const context_part own = run.part_of_context(c.context);
      return model.loss(own.of(words), own.of(words), own.positions());
    }
  };
  const auto in_use = [&] { return where.memory().figures().in_use; };
  const std::size_t parameters = in_use();
  // After this step, all memory that a run keeps from step to step has been allocated.
  run.step(1, [&](index_t) { return loss_of(); });
  const std::size_t gradients = make_gradients(model, where);
  where.memory().reset_peak();
  step_memory found;
  const auto quiet = run.no_sync();
  tape steps(run);
  const std::size_t before = in_use();
  auto loss = steps.eval(loss_of());
  found.kept = in_use() - before;
  steps.backward(loss);
  found.peak = where.memory().figures().peak - parameters - gradients;
  return found;
}

/// The memory of each of `ranks` ranks, on a device that only counts.
template <class Plan>
std::vector<step_memory> forecast(int ranks, const gpt2::config& c, weft::index_t batch) {
  std::vector<step_memory> all;
  for (int r = 0; r < ranks; ++r) {
    weft::counting_communicator nowhere(r, ranks);
    const weft::device counts(std::make_shared<weft::counting_backend>());
    all.push_back(memory_of_step<Plan>(nowhere, counts, c, batch));
  }
  return all;
}
