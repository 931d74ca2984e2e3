// SPDX-License-Identifier: MIT
// Pipeline parallelism: stages of ranks hold consecutive blocks and pass micro-batches on.
//
//   using plan = policy<strategy::mesh<pp<pipeline::one_f_one_b>, dp>>;
//   auto run = bind<plan>(model, optimizer, ranks, {.pp = 2, .dp = 2});
//   auto r = run.step(8, [&](index_t j) { return cross_entropy(model(x[j]), y[j]); }, {.clip = 1.0});
//
// The model is unchanged: its statement is divided between the blocks of its `repeat`s. Every rank calls the
// loss for all micro-batches, and executes the programs of its own chunks. Which parameters a rank holds
// follows from the statement: it is known after the first step, or after run.prepare(statement,
// micro_batches). The elements of all other parameters are freed, or, on a deferred device, never created.
#pragma once

#include <weft/parallel/bind.hpp>
#include <weft/parallel/pipeline_context.hpp>

namespace weft {

/// A run whose ranks hold stages of the model. Explicit tapes and `step(options)` cannot be used: a step is
/// `step(micro_batches, loss)`.
template <class Optimizer, class Options = program_options<>, bool DividesBackward = false>
class pipeline_run : public bound_run<Optimizer, Options, pipeline_context> {
  using base = bound_run<Optimizer, Options, pipeline_context>;

 public:
  static constexpr bool divides_backward = DividesBackward;

  [[gnu::cold]] pipeline_run(parallel::bound_model model, Optimizer& optimizer,
                             std::shared_ptr<communicator> ranks, const parallel_options& o,
                             pipeline_options p, std::shared_ptr<communicator> layers,
                             parallel::expert_division experts = {})
      : base(typename base::empty{}, std::move(model), optimizer, std::move(ranks), o, std::move(p),
             std::move(layers), DividesBackward) {
    base::divide_experts(std::move(experts));
  }

  /// Divides the model among the stages, as the first step does. `statement` is a loss of the model, which is
  /// not computed. Call it before reading a checkpoint or exporting a model that has not been trained.
  /// Collective. Throws usage_error if the schedule has more chunks than the statement has blocks.
  template <expression E>
  void prepare(const E& statement, index_t micro_batches) {
    const typename base::in_statement inside(*this);
    const auto loss = [&](index_t) -> const E& { return statement; };
    parallel::statements_of<pipeline_run, decltype(loss)> statements(*this, loss, 1);
    pipeline_context::prepare(micro_batches, [&](const parallel::stage_events& events) {
      return statements.visit(0, parallel::no_blocks, events).blocks;
    });
  }

  /// Executes a training step; see bound_run. Every rank calls `loss` for all micro-batches. If `loss` or a
  /// program throws on one rank, the others throw a comm_error that names it, the chunk and the micro-batch.
  /// A schedule without a flush updates parameters once per micro-batch: `norm` is NaN, and parameters have
  /// already changed when non_finite_error is thrown.
  template <class Loss>
    requires std::invocable<Loss&, index_t>
  step_result step(index_t micro_batches, Loss loss, step_options o = {}) {
    using statement = std::remove_cvref_t<std::invoke_result_t<Loss&, index_t>>;
    static_assert(evaluated<statement>::static_shape.order == 0, "weft: step: the loss must be a scalar");
    parallel::statements_of<pipeline_run, Loss> statements(*this, loss, micro_batches);
    return pipeline_context::step(statements, micro_batches, o);
  }

  /// Computes `e`, a statement of the model, on the stages, and returns its value on every rank. Nothing is
  /// recorded. Collective. Throws usage_error if `e` has more blocks than the statement by which the model
  /// was divided.
  template <expression E>
  evaluated<E> eval(const E& e) {
    const auto evaluate = [&](const parallel::block_range& mine, const parallel::stage_events& events) {
      runtime::forgetful_evaluator<Options> inner{*this};
      parallel::stage_evaluator<runtime::forgetful_evaluator<Options>> walk(inner, *this, mine, events);
      const evaluated<E> value = walk.eval(e);
      return pipeline_context::evaluated_chunk{value.state(), walk.blocks()};
    };
    return evaluated<E>(pipeline_context::eval(evaluate));
  }
};

/// Whether a run, or its base, is a pipeline_run.
template <class Run>
concept pipelined = std::derived_from<Run, context> && requires(Run& run) { run.stage(); };

/// The value of a statement of a pipelined model, on every rank. Collective.
template <expression E, pipelined Run>
auto eval(const E& e, Run& run) {
  return run.eval(e);
}

namespace detail {
/// Divides the layers of a model whose policy has the axis tp, and returns the ranks along it; otherwise
/// null.
template <class Plan, class Model>
std::shared_ptr<communicator> divided_layers(Model& model, communicator& ranks, const parallel_options& o) {
  std::shared_ptr<communicator> layers;
  if constexpr (divides_layers<Plan>) {
    const comm_options waits{.timeout = o.timeout, .control = true};
    layers = group_along(ranks, {.tp = o.layer_ranks}, mesh_axis::tp, mesh_axis::tp, waits);
    parallel::divide_layers(model, *layers, waits);
  }
  return layers;
}
}  // namespace detail

/// Binds a model to a mesh with the axis pp; see bind for a mesh.
template <class Plan, class Model, class Optimizer>
  requires(Plan::strategy_type::has(mesh_axis::pp) && !divides_context<Plan>)
auto bind(Model& model, Optimizer& optimizer, communicator& ranks, const parallel_options& o,
          pipeline_options p = {}, const device_options& where = {}) {
  detail::mesh_of<Plan>(o, ranks.size());
  detail::place_model<Plan>(model, ranks, where);
  std::shared_ptr<communicator> layers = detail::divided_layers<Plan>(model, ranks, o);
  using axis = typename detail::pipeline_axis_of<typename Plan::strategy_type>::type;
  if (!p.schedule) p.schedule = axis::make;
  return pipeline_run<Optimizer, typename Plan::programs, axis::divides_backward>(
      parallel::bound_model(model), optimizer, {std::shared_ptr<void>(), &ranks}, o, std::move(p),
      std::move(layers), detail::divided_experts<Plan>(model, ranks, o));
}
template <class Plan, class Model, class Optimizer>
  requires(Plan::strategy_type::has(mesh_axis::pp))
auto bind(Model& model, Optimizer& optimizer, communicator& ranks, const mesh_sizes& sizes,
          pipeline_options p = {}, const device_options& where = {}) {
  return bind<Plan>(model, optimizer, ranks, Plan::strategy_type::options(check_mesh(sizes, ranks.size())),
                    std::move(p), where);
}
/// The same for a mesh whose only axis is pp; all ranks are along it.
template <class Plan, class Model, class Optimizer>
  requires(Plan::strategy_type::has(mesh_axis::pp))
auto bind(Model& model, Optimizer& optimizer, communicator& ranks, const device_options& where = {}) {
  return bind<Plan>(model, optimizer, ranks, Plan::strategy_type::sizes(ranks.size()), pipeline_options{},
                    where);
}

}  // namespace weft
