// SPDX-License-Identifier: MIT
// Binds a model to a parallel strategy. The training loop is the same for all strategies.
//
//   auto run = bind<policy<strategy::fully_sharded<3>>>(model, optimizer, ranks);
//   for (auto [x, y] : batches) {
//     tape steps(run);
//     auto loss = steps.eval(cross_entropy(model(x), y));
//     steps.backward(loss);
//     run.step({.clip = 1.0});
//   }
//
// A policy with on<...> moves the model to a device of that kind: `bind<policy<on<cuda>>>(model, optimizer,
// ranks)` to the GPU of this rank, with `{.device = 1}` as the last argument to another.
//
// A whole step with micro-batches can be written in one call: run.step(m, [&](index_t j) { return loss of
// batch j; }).
//
// Binding replaces parameters and buffers by those of rank 0, which sends only what differs (digests are
// compared); parameters that have no memory yet (device::deferred) are initialized, each rank drawing the
// rows that it holds. A bound model is used in expressions as before. Reading the elements of
// `model.layer.weight` never sends a message: it throws value_error if the parameter is sharded. `full`
// returns complete copies; all ranks must call it. Buffers are complete on every rank, and equal to those of
// rank 0 after every step.
#pragma once

#include <concepts>
#include <span>
#include <utility>

#include <weft/base/record_function.hpp>
#include <weft/comm/self.hpp>
#include <weft/optim/optimizer.hpp>
#include <weft/parallel/distributed_context.hpp>
#include <weft/parallel/model_device.hpp>
#include <weft/run/tape.hpp>

namespace weft {

/// A context for a model whose parameters are distributed by a strategy, and its optimizer. `Context`: the
/// base class, which does not depend on their types.
template <class Optimizer, class Options = program_options<>,
          std::derived_from<distributed_context> Context = distributed_context>
class bound_run : public Context {
  static_assert(optimizer_like<Optimizer>,
                "weft: bind: an optimizer must have members `optimizer_state state`, `std::int64_t steps` "
                "and a function template `void update(const parameter_update<T>&)`");

 public:
  using programs = Options;

  [[gnu::cold]] bound_run(parallel::bound_model model, Optimizer& optimizer,
                          std::shared_ptr<communicator> ranks, const parallel_options& o,
                          parallel::expert_division experts = {})
      : bound_run(empty{}, std::move(model), optimizer, std::move(ranks), o) {
    Context::divide_experts(std::move(experts));
    Context::hold(this->model().parameters(), this->model().buffers());
  }

  using Context::step;
  /// Executes a whole training step under any strategy: evaluates loss(j), a scalar expression, for the
  /// micro-batches j = 0, 1, ..., m - 1 of this rank, runs a backward pass for each, and updates the
  /// parameters with the mean gradient over all micro-batches of all ranks. All ranks must pass the same m;
  /// ranks along tp, cp and ep check this first. `loss` is called once for each j, in order. Random numbers
  /// of a micro-batch depend only on `seed`, the optimizer's `steps`, micro_batch(j, m), and the rank along
  /// cp. Sends one message more than a hand-written loop, for the mean loss. With `o.graph`, a device that
  /// can record work executes steps whose losses differ only in the elements of their operands as one
  /// recorded step (docs/devices.md). Throws like `step`, and non_finite_error if `o.finite` and a loss is
  /// not finite; the run must not continue then. If `loss` throws on all ranks, the next step(m, loss) starts
  /// without the gradients of this one.
  ///   auto r = run.step(4, [&](index_t j) { return cross_entropy(model(x[j]), y[j]); }, {.clip = 1.0});
  template <class Loss>
    requires std::invocable<Loss&, index_t>
  step_result step(index_t micro_batches, Loss loss, step_options o = {}) {
    const record_function range("step");
    o.micro_batches = micro_batches;
    Context::check(o);  // before gradients are computed
    this->model().require_unchanged("step");
    check_optimizer();
    Context::begin_together(micro_batches);
    if (o.graph && this->where()->records()) return recorded_step(micro_batches, loss, o);
    const auto before = this->communicated();
    tensor_list losses;
    recycled_vector<double> weights;
    const typename Context::passes_of_step passes(*this);
    for (index_t j = 0; j < micro_batches; ++j) {
      begin_batch(j, micro_batches);
      losses.push_back(differentiated([&] { return loss(j); }, j + 1 == micro_batches));
      weights.push_back(this->loss_weight);
    }
    const step_result r = this->complete_step(losses, {weights.data(), weights.size()}, o, before);
    passes.end();
    return r;
  }

  Optimizer& optimizer() const { return *optimizer_; }

 protected:
  struct empty {};
  /// A run that holds no parameters yet. `more`: further constructor arguments of `Context`.
  template <class... More>
  [[gnu::cold]] bound_run(empty, parallel::bound_model model, Optimizer& optimizer,
                          std::shared_ptr<communicator> ranks, const parallel_options& o, More&&... more)
      : Context(std::move(model), {&optimizer.state, &optimizer.steps, Options::products == dtype::f16},
                std::move(ranks), o, std::forward<More>(more)...),
        optimizer_(&optimizer) {}

 private:
  void update_local(const gradient_scale& scale) override {
    parallel::whole_exchange whole = this->whole_computations();
    weft::update_parameters(*optimizer_, this->local(), scale, *this, &whole);
  }
  void check_optimizer() const override {
    detail::check_settings(*optimizer_);
    if (this->holds_parameters()) detail::check_settings(*optimizer_, this->local());
  }
  void begin_batch(index_t j, index_t micro_batches) {
    this->begin_micro_batch(static_cast<std::uint64_t>(optimizer_->steps),
                            static_cast<std::uint64_t>(this->micro_batch(j, micro_batches)));
    this->weigh_batch(j);
  }
  /// Runs a backward pass from loss() and returns the loss.
  template <class Loss>
  std::shared_ptr<tensor_state> differentiated(Loss loss, bool is_last) {
    const auto quiet = this->no_sync(!is_last);
    tape steps(*this);
    const auto value = steps.eval(loss());
    static_assert(std::remove_cvref_t<decltype(value)>::static_shape.order == 0,
                  "weft: step: the loss must be a scalar");
    steps.backward(value);
    return value.state();
  }
  /// A step that the device records. `loss` is called for all micro-batches beforehand, and these calls are
  /// not recorded.
  template <class Loss>
  step_result recorded_step(index_t micro_batches, Loss& loss, const step_options& o) {
    using statement = std::remove_cvref_t<std::invoke_result_t<Loss&, index_t>>;
    std::vector<statement> losses;
    std::vector<context::random_state> begins;
    runtime::module_contents held, held_after;
    runtime::operands read, read_after;
    read.held = &held;
    read_after.held = &held_after;
    losses.reserve(static_cast<std::size_t>(micro_batches));
    for (index_t j = 0; j < micro_batches; ++j) {
      begin_batch(j, micro_batches);
      losses.push_back(loss(j));
      begins.push_back(this->randomness());
      runtime::append_operands(losses.back(), read);
    }
    if (losses.size() > 1) {
      for (const statement& l : losses) runtime::append_operands(l, read_after);
      parallel::require_unchanged(held, held_after);
    }
    const auto compute = [&] {
      tensor_list values;
      for (std::size_t j = 0; j < losses.size(); ++j) {
        this->set_randomness(begins[j]);
        values.push_back(
            differentiated([&]() -> const statement& { return losses[j]; }, j + 1 == losses.size()));
      }
      return values;
    };
    return this->graph_step(&detail::identity<statement>, read, begins, compute, o);
  }

  Optimizer* optimizer_;
};

namespace detail {
template <class Plan>
using strategy_of = std::conditional_t<std::is_void_v<typename Plan::strategy_type>, strategy::single,
                                       typename Plan::strategy_type>;
template <class Strategy>
inline constexpr bool has_one_axis = true;
template <class... Axes>
inline constexpr bool has_one_axis<strategy::mesh<Axes...>> =
    sizeof...(Axes) == 1 && !strategy::mesh<Axes...>::has(mesh_axis::pp);
template <class Strategy>
inline constexpr bool is_pipeline = false;
template <class... Axes>
inline constexpr bool is_pipeline<strategy::mesh<Axes...>> = strategy::mesh<Axes...>::has(mesh_axis::pp);
/// Whether a strategy is a mesh without the axis pp; bind of a mesh with it is in parallel/pipeline.hpp.
template <class Strategy>
inline constexpr bool is_mesh = false;
template <class... Axes>
inline constexpr bool is_mesh<strategy::mesh<Axes...>> = !is_pipeline<strategy::mesh<Axes...>>;

template <class Plan, class Model, class Optimizer>
auto bound(Model& model, Optimizer& optimizer, communicator& ranks, const parallel_options& o,
           const device_options& where) {
  if (std::is_same_v<strategy_of<Plan>, strategy::single> && ranks.size() > 1)
    refuse<usage_error>({"weft: bind: strategy::single is for one rank, but there are ", ranks.size()});
  place_model<Plan>(model, ranks, where);
  return bound_run<Optimizer, typename Plan::programs>(parallel::bound_model(model), optimizer,
                                                       {std::shared_ptr<void>(), &ranks}, o);
}
}  // namespace detail

/// Whether a policy has the axis tp; its bind is in parallel/tensor_parallel.hpp.
template <class Plan>
concept divides_layers = Plan::strategy_type::has(mesh_axis::tp);
/// Whether a policy has the axis cp; its bind is in parallel/context_parallel.hpp.
template <class Plan>
concept divides_context = Plan::strategy_type::has(mesh_axis::cp);
/// Whether a policy has the axis ep; its bind is in parallel/expert_parallel.hpp.
template <class Plan>
concept divides_experts = Plan::strategy_type::has(mesh_axis::ep);
namespace detail {
template <mesh_axis A, class Strategy>
struct axis_of;
template <mesh_axis A, class First, class... Rest>
struct axis_of<A, strategy::mesh<First, Rest...>>
    : std::conditional_t<First::axis == A, std::type_identity<First>, axis_of<A, strategy::mesh<Rest...>>> {};

/// How the axis ep of a policy divides the experts of `model`; nothing without that axis. Collective.
/// The mesh of a policy's ranks. Throws usage_error if the options are for another number of ranks, or do not
/// match the policy.
template <class Plan>
mesh_sizes mesh_of(const parallel_options& o, int ranks) {
  check_options(o, Plan::strategy_type::has);
  mesh_sizes sizes = parallel::parameter_mesh(o, ranks);
  if (sizes.dp % o.context_ranks)
    refuse<usage_error>({"weft: bind: context_ranks is ", o.context_ranks, ", which does not divide ",
                         sizes.dp, " ranks with the same parameters"});
  sizes.dp /= o.context_ranks;
  sizes.cp = o.context_ranks;
  Plan::strategy_type::check(o, sizes);
  return sizes;
}

template <class Plan, class Model>
parallel::expert_division divided_experts([[maybe_unused]] const Model& model,
                                          [[maybe_unused]] communicator& ranks,
                                          [[maybe_unused]] const parallel_options& o) {
  if constexpr (divides_experts<Plan> && divides_layers<Plan>)
    static_assert(
        !Plan::programs::by_positions,
        "weft: bind: every rank of the axis tp sends the same rows to experts: the axis ep goes with "
        "tp<activations::whole>, not with tp<activations::by_positions>");
  if constexpr (!divides_experts<Plan>) return {};
  else
    return axis_of<mesh_axis::ep, typename Plan::strategy_type>::type::divided(
        model, ranks, parallel::parameter_mesh(o, ranks.size()), o.timeout);
}
}  // namespace detail
/// Whether a policy has one of these axes.
template <class Plan>
concept divides_model = divides_layers<Plan> || divides_context<Plan> || divides_experts<Plan>;

/// Binds a model and its optimizer to a strategy. A tied parameter has the name of its first occurrence in
/// the model. Throws value_error, naming the parameter, if one is not f32. All ranks must pass the same
/// model: throws usage_error if names, types or shapes of parameters or buffers differ. The model, the
/// optimizer and the communicator must outlive the run, at the same addresses. If the program replaces a
/// tensor of the model, model.head = clone(other), steps, full(), saves and loads throw usage_error, in
/// save_weights and checkpointer::load io_error: copy_weights copies into it.
template <program_choice... Choices, class Model, class Optimizer>
bound_run<Optimizer, options_of<Choices...>> bind(Model& model, Optimizer& optimizer, communicator& ranks,
                                                  const parallel_options& o) {
  check_options(o, strategy::mesh<dp>::has);
  return {parallel::bound_model(model), optimizer, {std::shared_ptr<void>(), &ranks}, o};
}
template <class Plan, class Model, class Optimizer>
  requires requires { typename Plan::strategy_type; } && (!divides_model<Plan>) &&
           (!detail::is_pipeline<detail::strategy_of<Plan>>)
auto bind(Model& model, Optimizer& optimizer, communicator& ranks, const device_options& where = {}) {
  return detail::bound<Plan>(model, optimizer, ranks, detail::strategy_of<Plan>::options(), where);
}
/// The same with options, for a strategy of one axis, which determines what is sharded. Throws usage_error if
/// the options contradict it.
///   auto run = bind<plan>(model, optimizer, ranks, {.deterministic = true});
template <class Plan, class Model, class Optimizer>
  requires detail::has_one_axis<detail::strategy_of<Plan>> && (!divides_model<Plan>)
auto bind(Model& model, Optimizer& optimizer, communicator& ranks, parallel_options o,
          const device_options& where = {}) {
  const parallel_options of_plan = detail::strategy_of<Plan>::options();
  if ((o.divide != sharding::none && !detail::strategy_of<Plan>::shards(o.divide)) ||
      (o.shard_ranks != 0 && of_plan.shard_ranks != 0 && o.shard_ranks != of_plan.shard_ranks))
    throw usage_error("weft: bind: divide and shard_ranks in the options differ from those of the policy");
  if (o.divide == sharding::none) o.divide = of_plan.divide;
  if (of_plan.shard_ranks != 0) o.shard_ranks = of_plan.shard_ranks;
  check_options(o, strategy::mesh<dp>::has);
  return detail::bound<Plan>(model, optimizer, ranks, o, where);
}
/// The same for a mesh, with the number of ranks along each axis: `rank_mesh` defines which rank has which
/// coordinates. Throws usage_error if the sizes do not multiply to the number of ranks, or the policy lacks
/// one of the axes.
template <class Plan, class Model, class Optimizer>
  requires detail::is_mesh<typename Plan::strategy_type>
auto bind(Model& model, Optimizer& optimizer, communicator& ranks, const mesh_sizes& sizes,
          const device_options& where = {}) {
  return bind<Plan>(model, optimizer, ranks, Plan::strategy_type::options(check_mesh(sizes, ranks.size())),
                    where);
}
/// The same with options, which include the sizes of the mesh:
///   auto o = plan::strategy_type::options({.dp = 2, .fsdp = 4});
///   o.deterministic = true;
///   auto run = bind<plan>(model, optimizer, ranks, o);
template <class Plan, class Model, class Optimizer>
  requires detail::is_mesh<typename Plan::strategy_type> &&
           (!detail::has_one_axis<typename Plan::strategy_type>) && (!divides_model<Plan>)
auto bind(Model& model, Optimizer& optimizer, communicator& ranks, const parallel_options& o,
          const device_options& where = {}) {
  detail::mesh_of<Plan>(o, ranks.size());
  return detail::bound<Plan>(model, optimizer, ranks, o, where);
}
/// The same for a mesh whose only axis is tp, cp or ep; all ranks are along it.
template <class Plan, class Model, class Optimizer>
  requires divides_model<Plan> && (!Plan::strategy_type::has(mesh_axis::pp))
auto bind(Model& model, Optimizer& optimizer, communicator& ranks, const device_options& where = {}) {
  return bind<Plan>(model, optimizer, ranks, Plan::strategy_type::sizes(ranks.size()), where);
}
/// The same for a single process.
template <class Plan, class Model, class Optimizer>
auto bind(Model& model, Optimizer& optimizer, const device_options& where = {}) {
  auto alone = std::make_shared<self_communicator>();
  detail::place_model<Plan>(model, *alone, where);
  return bound_run<Optimizer, typename Plan::programs>(
      parallel::bound_model(model), optimizer, std::move(alone), detail::strategy_of<Plan>::options());
}

}  // namespace weft
