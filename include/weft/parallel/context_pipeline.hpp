// SPDX-License-Identifier: MIT
// Pipelines in which the ranks of each stage divide the positions of sequences.
//
//   using plan = policy<strategy::mesh<pp<>, cp<>>>;
//   auto run = bind<plan>(model, optimizer, ranks, {.pp = 2, .cp = 2});
#pragma once

#include <weft/parallel/context_parallel.hpp>
#include <weft/parallel/pipeline.hpp>

namespace weft {

/// Binds a model to a mesh with the axes pp and cp: see bind for a mesh with one of them. All micro-batches
/// of a step must have sequences of one length. Throws usage_error if the sizes do not multiply to the number
/// of ranks.
template <class Plan, class Model, class Optimizer>
  requires divides_context<Plan> && (Plan::strategy_type::has(mesh_axis::pp))
auto bind(Model& model, Optimizer& optimizer, communicator& ranks, const parallel_options& o,
          pipeline_options p = {}, const device_options& where = {}) {
  const mesh_sizes sizes = detail::mesh_of<Plan>(o, ranks.size());
  detail::place_model<Plan>(model, ranks, where);
  std::shared_ptr<communicator> layers = detail::divided_layers<Plan>(model, ranks, o);
  using axis = typename detail::pipeline_axis_of<typename Plan::strategy_type>::type;
  if (!p.schedule) p.schedule = axis::make;
  return context_parallel_run<pipeline_run<Optimizer, typename Plan::programs, axis::divides_backward>>(
      group_along(ranks, sizes, mesh_axis::cp, mesh_axis::cp, {.timeout = o.timeout}, true),
      parallel::bound_model(model), optimizer, std::shared_ptr<communicator>(std::shared_ptr<void>(), &ranks),
      o, std::move(p), std::move(layers), detail::divided_experts<Plan>(model, ranks, o));
}

}  // namespace weft
