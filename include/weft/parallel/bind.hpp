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
// compared); parameters that have no memory yet (device::deferred) are initialized, by each rank the rows
// that it holds. A bound model is used in expressions as before. Reading the elements of `model.layer.weight`
// never starts a message: it throws value_error if the parameter is sharded. `full` returns complete copies;
// all ranks must call it. Buffers are complete on every rank, and after every step equal to those of rank 0.
#pragma once

#include <concepts>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <weft/comm/self.hpp>
#include <weft/optim/loss_scale.hpp>
#include <weft/optim/optimizer.hpp>
#include <weft/parallel/data_parallel.hpp>
#include <weft/parallel/model_device.hpp>
#include <weft/parallel/norm.hpp>
#include <weft/run/tape.hpp>

namespace weft {

/// Options of `bound_run::step()`.
struct step_options {
  double clip = 0;            // maximum norm of the gradient; 0: no limit
  index_t micro_batches = 1;  // backward passes since the last step, over which the mean is taken
  bool finite = false;  // step(micro_batches, loss) throws non_finite_error rather than update parameters
};

/// The results of `step(micro_batches, loss)`, and its communication on this rank.
struct step_result {
  double loss = 0;             // mean over all micro-batches of all ranks
  double norm = 0;             // of the gradient, before clipping
  traffic sent;                // bytes by kind of operation
  axis_bytes sent_by_axis{};   // in the order of mesh_axes, without those that coordinate ranks
  double waited_ms = 0;        // for other ranks
  double bubble_fraction = 0;  // of a pipeline: measured time without computing, over all ranks
};

/// A context for a model whose parameters are distributed by a strategy.
template <class Optimizer, class Options = program_options<>>
class bound_run : public context {
  static_assert(optimizer_like<Optimizer>,
                "weft: bind: an optimizer has members `optimizer_state state`, `std::int64_t steps` and a "
                "function template `void update(const parameter_update<T>&)`");

 public:
  using programs = Options;
  static constexpr bool scales_loss = Options::products == dtype::f16;

  [[gnu::cold]] bound_run(const state_dict_t& parameters, const state_dict_t& buffers, Optimizer& optimizer,
                          std::shared_ptr<communicator> ranks, const parallel_options& o)
      : bound_run(device_of(parameters), optimizer, std::move(ranks), o) {
    hold(parameters, buffers, *ranks_);
  }

  /// Updates the parameters with the mean gradient over ranks and micro-batches, and clears the gradient.
  /// Returns its 2-norm before clipping, which is the same on all ranks and for all strategies. With local
  /// steps, gradient and norm are those of this rank. In f16, a gradient that is not finite only changes the
  /// scale of the loss. Throws value_error if `clip` is negative or NaN, and usage_error if there was no
  /// backward pass since the last step.
  double step(const step_options& o = {}) {
    check(o);
    if (std::exchange(passes_seen_, backward_passes()) == backward_passes())
      throw usage_error(
          "weft: step: no backward pass has gone through this run since the last step: make the tape with "
          "`tape steps(run)` and call steps.backward(loss) before each step");
    const bool local = options_.local_steps > 1;
    const int ranks = local ? 1 : groups().data().size();
    const double mean =
        1.0 / static_cast<double>(joined_ > 0 ? std::exchange(joined_, 0) : o.micro_batches * ranks);
    loss_weight = 1;
    const double norm = gradient_norm() * mean;
    begin_update();
    if (!scales_loss || !where()->computes() || scaler_.update(std::isfinite(norm)))
      update_parameters(*optimizer_, local_,
                        mean / loss_scale * (o.clip > 0 ? clip_factor(norm, o.clip) : 1.0), *this);
    else
      for (const auto& [name, p] : local_) p->grad.reset();
    set_scale();
    end_step();
    return norm;
  }

  /// Executes a whole training step under any strategy: evaluates loss(j), a scalar expression, for the
  /// micro-batches j = 0, 1, ..., m - 1 of this rank, runs a backward pass for each, and updates the
  /// parameters with the mean gradient over all micro-batches of all ranks. All ranks must pass the same m.
  /// `loss` is called once for each j, in order. Random numbers of a micro-batch depend only on `seed`, the
  /// optimizer's `steps` and micro_batch(j, m). Sends one message more than a loop written by hand, for the
  /// mean loss. Throws like `step`, and non_finite_error if `o.finite` and a loss is not finite; the run must
  /// not continue then.
  ///   auto r = run.step(4, [&](index_t j) { return cross_entropy(model(x[j]), y[j]); }, {.clip = 1.0});
  template <class Loss>
    requires std::invocable<Loss&, index_t>
  step_result step(index_t micro_batches, Loss loss, step_options o = {}) {
    o.micro_batches = micro_batches;
    check(o);  // before gradients are computed
    const communication before = communicated();
    recycled_vector<double> losses(static_cast<std::size_t>(micro_batches * ranks_->size()), 0.0);
    const auto number_of_step = static_cast<std::uint64_t>(optimizer_->steps);
    for (index_t j = 0; j < micro_batches; ++j) {
      const index_t number = micro_batch(j, micro_batches);
      begin_micro_batch(number_of_step, static_cast<std::uint64_t>(number));
      const auto quiet = no_sync(j + 1 < micro_batches);
      tape steps(*this);
      const auto value = steps.eval(loss(j));
      static_assert(std::remove_cvref_t<decltype(value)>::static_shape.order == 0,
                    "weft: step: the loss must be a scalar");
      steps.backward(value);
      losses[static_cast<std::size_t>(number)] = loss_weight * static_cast<double>(value.item());
    }
    if (ranks_->size() > 1) ranks_->all_reduce(std::span(losses), reduction::sum, control("losses")).wait();
    step_result r = mean_of(losses, o);
    r.norm = step(o);
    set_communication(r, before);
    return r;
  }

  /// The 2-norm of the sum of gradients over ranks and micro-batches; valid after the last backward pass of a
  /// step. Collective.
  double gradient_norm() {
    deliver_gradients();
    return parallel::norm_over_ranks(*this, owned_gradients(), groups().owners(), control("norm")) /
           loss_scale;
  }
  /// The largest absolute value of these gradients. Collective.
  double gradient_inf_norm() {
    deliver_gradients();
    return parallel::inf_norm_over_ranks(*this, owned_gradients(), groups().owners(), control("norm")) /
           loss_scale;
  }

  /// Calls f once, before the next step changes parameters or the state of the optimizer.
  void before_update(std::function<void()> f) { before_update_.push_back(std::move(f)); }

  /// The scale of the loss in f16, which is part of checkpoints.
  const loss_scaler& scaler() const { return scaler_; }
  void set_scaler(const loss_scaler& s) {
    scaler_ = s;
    set_scale();
  }

  /// During its lifetime, backward passes accumulate gradients without sending them if the strategy allows
  /// it; the first pass afterwards sends the sum. Like no_sync of torch's DistributedDataParallel.
  ///   const auto quiet = run.no_sync(micro + 1 < count);
  class no_sync_scope {
   public:
    no_sync_scope(parallel::data_parallel_hooks& of, bool on) : of_(of), before_(of.synchronizes()) {
      of.synchronize(before_ && !on);
    }
    no_sync_scope(const no_sync_scope&) = delete;
    no_sync_scope& operator=(const no_sync_scope&) = delete;
    ~no_sync_scope() { of_.synchronize(before_); }

   private:
    parallel::data_parallel_hooks& of_;
    bool before_;
  };
  no_sync_scope no_sync(bool on = true) { return no_sync_scope(*parallel_, on); }

  /// For ranks with different numbers of batches: all ranks call it before each batch until it returns 0.
  /// Returns the number of ranks that have a batch. A rank without one computes its last batch again with
  /// weight 0, so that it takes part in all messages; the step averages over the batches that count.
  ///   while (run.join(batch.has_value()) > 0) { ... }
  int join(bool has_batch) {
    std::vector<std::int32_t> having{has_batch};
    groups().data().all_reduce(having, reduction::sum, control("join")).wait();
    loss_weight = has_batch || having[0] == 0 ? 1 : 0;
    joined_ += having[0];
    return having[0];
  }

  /// The number of this rank's `index`-th micro-batch among those of all ranks in a step. Depends on when
  /// gradients are reduced, so that sums are the same on any number of ranks.
  index_t micro_batch(index_t index, index_t per_rank) const {
    const communicator& data = data_ranks();
    return options_.reduces_each() ? index * data.size() + data.rank() : data.rank() * per_rank + index;
  }

  /// Complete copies of all parameters, then of all buffers, by name. Collective.
  [[gnu::cold]] state_dict_t full() {
    state_dict_t all;
    for (const auto& [name, p] : local_) all.emplace_back(name, parallel_->whole_of(name, p));
    for (const auto& [name, b] : parallel_->buffers()) {
      all.emplace_back(name, make_state(b->where, b->extents, b->type));
      parallel::copy_rows(all.back().second, 0, b, 0, b->extents.size());
    }
    return all;
  }

  /// Complete copies of the state of the optimizer, named "kind.parameter". Collective.
  [[gnu::cold]] state_dict_t full_optimizer() {
    communicator& shards = parallel_->groups().shards();
    std::string keys;  // of the first rank, which has rows of every parameter
    for (const auto& [key, t] : optimizer_->state.tensors()) keys += key + '\n';
    std::vector<std::int64_t> size{static_cast<std::int64_t>(keys.size())};
    shards.broadcast(size, 0, control("optimizer")).wait();
    std::vector<std::uint8_t> text(keys.begin(), keys.end());
    text.resize(static_cast<std::size_t>(size[0]));
    shards.broadcast(text, 0, control("optimizer")).wait();
    state_dict_t all;
    for (auto at = text.begin(); at != text.end(); ++at) {
      const auto dot = std::find(at, text.end(), '.'), end = std::find(dot, text.end(), '\n');
      const std::string kind(at, dot), name(dot + 1, end);
      const auto rows = optimizer_->state.find(kind, name);
      all.emplace_back(kind + "." + name,
                       parallel_->whole_of(name, rows ? rows : parallel::flat(where(), 0)));
      at = end;
    }
    return all;
  }

  /// Must be called after other code has set elements of local parameters. Collective.
  void reload() { parallel_->parameters_changed(); }

  /// What this rank holds of each parameter and buffer of the model.
  virtual std::vector<held_tensor> held_tensors() const { return parallel().held_tensors(); }
  /// The parameters that this rank updates.
  const state_dict_t& local() const { return local_; }
  Optimizer& optimizer() const { return *optimizer_; }
  communicator& ranks() const { return *ranks_; }
  const parallel_options& options() const { return options_; }
  /// Throws usage_error if the parameters of this rank are not known yet, before the first step of a
  /// pipeline.
  const parallel::data_parallel_hooks& parallel() const {
    if (!parallel_) refuse_unprepared();
    return *parallel_;
  }
  const parallel::rank_groups& groups() const { return parallel().groups(); }
  /// The ranks that divide layers with this one. Throws usage_error if the policy has no axis tp.
  communicator& layer_ranks() const {
    if (!groups().layers()) throw usage_error("weft: layer_ranks: the policy has no axis tp");
    return *groups().layers();
  }

  /// Bytes that this rank has sent along each axis, in the order of mesh_axes, without control traffic.
  virtual axis_bytes sent_by_axis() const { return groups().sent_by_axis(); }

  index_t optimizer_bytes() const { return static_cast<index_t>(optimizer_->state.bytes()); }

 protected:
  /// A run that holds no parameters yet; see hold().
  [[gnu::cold]] bound_run(const device& where, Optimizer& optimizer, std::shared_ptr<communicator> ranks,
                          const parallel_options& o)
      : context(where), options_(checked(o)), ranks_(std::move(ranks)), optimizer_(&optimizer) {
    if (scales_loss && o.hook)
      throw usage_error(
          "weft: bind: a hook may keep what it has not sent, in the scale of the loss, which changes with "
          "f16; use bf16");
    set_scale();
    if (o.offload_optimizer) optimizer.state.keep_on(*o.offload_optimizer);
  }

  /// The device of a model, which must have parameters.
  static device device_of(const state_dict_t& parameters) {
    if (parameters.empty()) detail::refuse_step(false);
    return parameters.front().second->where;
  }
  /// Divides these parameters and buffers among the ranks of `data`, which must outlive the run. For
  /// pipelines, `owners` are the ranks that hold a copy of the model together, and `chunks` says by parameter
  /// which chunk reads it. `layers`: the ranks that divide layers, of which these parameters are the parts of
  /// this rank. `experts`: see data_parallel_hooks. Collective.
  [[gnu::cold]] void hold(const state_dict_t& parameters, const state_dict_t& buffers, communicator& data,
                          std::shared_ptr<communicator> owners = nullptr, const std::vector<int>& chunks = {},
                          std::shared_ptr<communicator> layers = nullptr,
                          const parallel::expert_parameters& experts = {}) {
    parallel_.emplace(parameters, buffers, data, options_, where(), std::move(owners), chunks, experts);
    if (layers) layer_rank_.divides_layers(layers->size(), layers->rank());
    if (groups().data().size() > 1 || options_.deterministic || layers) hooks_ = &*parallel_;
    parallel_->groups().divide_layers(std::move(layers));
    parallel_->groups().divide_context(context_);
    parallel_->groups().set_step(0);
    local_ = parallel_->local();
  }
  static void check(const step_options& o) {
    weft::detail::require_limit("step: clip", o.clip);
    if (o.micro_batches < 1) refuse<value_error>({"weft: step: ", o.micro_batches, " micro-batches"});
  }
  /// What this rank has communicated since binding.
  struct communication {
    traffic sent;
    axis_bytes by_axis;
    double waited_ms;
  };
  virtual communication communicated() const {
    return {groups().sent(), sent_by_axis(), groups().waited_ms()};
  }
  /// Sets what has been communicated since `before`.
  void set_communication(step_result& r, const communication& before) const {
    const communication now = communicated();
    r.sent = now.sent - before.sent;
    r.sent_by_axis = difference(now.by_axis, before.by_axis);
    r.waited_ms = now.waited_ms - before.waited_ms;
  }
  /// The mean of the losses of all micro-batches.
  step_result mean_of(std::span<const double> losses, const step_options& o) const {
    step_result r;
    for (const double l : losses) r.loss += l;
    r.loss /= static_cast<double>(losses.size());
    if (o.finite && where()->computes())
      for (std::size_t i = 0; i < losses.size(); ++i)
        if (!std::isfinite(losses[i])) throw non_finite_error(static_cast<std::int64_t>(i));
    return r;
  }
  bool holds_parameters() const { return parallel_.has_value(); }

  /// Whether subsequent backward passes are the last of the step; see no_sync.
  void synchronize(bool on) { parallel_->synchronize(on); }
  /// Positions are divided among ranks, which `by` executes attention over.
  void divide_context(std::shared_ptr<parallel::context_service> by) {
    context_ = std::move(by);
    if (parallel_) parallel_->groups().divide_context(context_);
  }
  /// During subsequent backward passes, the gradients of these tensors are not reduced.
  void withhold(tensor_list of) { parallel_->withhold(std::move(of)); }

  /// The ranks that process different data.
  virtual const communicator& data_ranks() const { return groups().data(); }
  /// Completes the gradients of a step.
  virtual void deliver_gradients() {
    if (hooks_) parallel_->deliver_gradients();
  }
  /// Calls what waits for the next change of parameters.
  void begin_update() {
    for (const auto& f : std::exchange(before_update_, {})) f();
  }
  /// Updates all local parameters with the mean gradient of one micro-batch of each rank, which has been
  /// delivered, as the update that follows `updates` others. For schedules that update parameters more than
  /// once in a step.
  void update_once(std::int64_t updates) {
    optimizer_->steps = updates;
    update_parameters(*optimizer_, local_, 1.0 / (loss_scale * groups().data().size()), *this);
    parallel_->parameters_changed();
  }
  /// Ends a step whose parameters have been updated.
  void end_step() {
    parallel_->groups().set_step(++steps_);
    const bool meets = steps_ % options_.local_steps == 0;
    if (options_.local_steps > 1 && groups().data().size() > 1 && meets) parallel_->average_parameters();
    if (options_.broadcast_buffers && meets) parallel_->broadcast_buffers();
    parallel_->parameters_changed();
  }
  /// Whether norms count the gradient of this parameter on this rank.
  virtual bool counts(const tensor_state&) const { return true; }

 private:
  [[noreturn, gnu::cold]] static void refuse_unprepared() {
    throw usage_error(
        "weft: which parameters this rank holds is not known before the first step of a pipeline: take it, "
        "or call run.prepare(loss, micro_batches)");
  }
  void set_scale() {
    if (scales_loss) loss_scale = scaler_.scale;
  }
  comm_options control(const char* label) const { return parallel_->groups().labelled(label, true); }
  /// The gradients that this rank counts in norms: of the rows that it updates and no other owner updates.
  tensor_list owned_gradients() const {
    tensor_list all;
    for (const auto& [name, p] : local_)
      if (p->grad && counts(*p)) all.push_back(p->grad);
    return all;
  }

  [[gnu::cold]] static const parallel_options& checked(const parallel_options& o) {
    const auto require = [](bool holds, const char* field, index_t value) {
      if (!holds) refuse<usage_error>({"weft: bind: ", field, " is ", value});
    };
    require(o.local_steps >= 1, "local_steps", o.local_steps);
    require(o.stages >= 1, "stages", o.stages);
    require(o.layer_ranks >= 1, "layer_ranks", o.layer_ranks);
    require(o.context_ranks >= 1, "context_ranks", o.context_ranks);
    require(o.expert_ranks >= 1, "expert_ranks", o.expert_ranks);
    require(o.shard_ranks >= 0, "shard_ranks", o.shard_ranks);
    require(o.prefetch >= 0, "prefetch", o.prefetch);
    require(o.bucket_bytes >= 0, "bucket_bytes", o.bucket_bytes);
    require(o.first_bucket_bytes >= 0, "first_bucket_bytes", o.first_bucket_bytes);
    return o;
  }

  parallel_options options_;
  std::shared_ptr<communicator> ranks_;
  Optimizer* optimizer_;
  std::shared_ptr<parallel::context_service> context_;
  std::optional<parallel::data_parallel_hooks> parallel_;
  state_dict_t local_;
  loss_scaler scaler_;
  std::vector<std::function<void()>> before_update_;
  index_t joined_ = 0;      // micro-batches that count since the last step, if join() was used
  std::int64_t steps_ = 0;  // since binding
  std::uint64_t passes_seen_ = 0;
};

namespace detail {
/// The parameters of a model, each once: a tied one occurs at several places and has the name of the first.
template <class Model>
state_dict_t once_each(const Model& model) {
  state_dict_t all = named_parameters(model);
  tensor_list met;
  std::erase_if(all, [&](const auto& named) { return !is_new(met, named.second); });
  return all;
}
template <class Plan>
using strategy_of = std::conditional_t<std::is_void_v<typename Plan::strategy_type>, strategy::single,
                                       typename Plan::strategy_type>;
}  // namespace detail

/// Whether a policy has the axis tp: bind is then that of parallel/tensor_parallel.hpp.
template <class Plan>
concept divides_layers = Plan::strategy_type::has(mesh_axis::tp);
/// Whether a policy has the axis cp: bind is then that of parallel/context_parallel.hpp.
template <class Plan>
concept divides_context = Plan::strategy_type::has(mesh_axis::cp);
/// Whether a policy has the axis ep: bind is then that of parallel/expert_parallel.hpp.
template <class Plan>
concept divides_experts = Plan::strategy_type::has(mesh_axis::ep);
/// Whether it has one of these axes.
template <class Plan>
concept divides_model = divides_layers<Plan> || divides_context<Plan> || divides_experts<Plan>;

/// Binds a model and its optimizer to a strategy. A parameter at several places of the model is known under
/// the name of the first. All ranks must pass the same model. The model, the optimizer and the communicator
/// must outlive the run.
template <program_choice... Choices, class Model, class Optimizer>
bound_run<Optimizer, options_of<Choices...>> bind(Model& model, Optimizer& optimizer, communicator& ranks,
                                                  const parallel_options& o) {
  check_axes(o, strategy::mesh<dp>::has);
  return {detail::once_each(model), named_buffers(model), optimizer, {std::shared_ptr<void>(), &ranks}, o};
}
template <class Plan, class Model, class Optimizer>
  requires requires { typename Plan::strategy_type; } && (!divides_model<Plan>)
auto bind(Model& model, Optimizer& optimizer, communicator& ranks, const device_options& where = {}) {
  using chosen = detail::strategy_of<Plan>;
  if (std::is_same_v<chosen, strategy::single> && ranks.size() > 1)
    throw usage_error("weft: bind: strategy::single is for one rank, there are " +
                      std::to_string(ranks.size()));
  detail::place_model<Plan>(model, ranks, where);
  return bound_run<Optimizer, typename Plan::programs>(detail::once_each(model), named_buffers(model),
                                                       optimizer, {std::shared_ptr<void>(), &ranks},
                                                       chosen::options());
}
/// The same for a mesh, with the number of ranks along each axis: `rank_mesh` says which rank is where.
/// Throws usage_error if they do not multiply to the number of ranks, or the policy has no such axis.
template <class Plan, class Model, class Optimizer>
  requires requires(const mesh_sizes& sizes) { Plan::strategy_type::options(sizes); } &&
           (!Plan::strategy_type::has(mesh_axis::pp)) && (!divides_model<Plan>)
auto bind(Model& model, Optimizer& optimizer, communicator& ranks, const mesh_sizes& sizes,
          const device_options& where = {}) {
  const parallel_options o = Plan::strategy_type::options(check_mesh(sizes, ranks.size()));
  detail::place_model<Plan>(model, ranks, where);
  return bound_run<Optimizer, typename Plan::programs>(detail::once_each(model), named_buffers(model),
                                                       optimizer, {std::shared_ptr<void>(), &ranks}, o);
}
/// The same for a mesh whose only axis is tp, cp or ep, along which all ranks are.
template <class Plan, class Model, class Optimizer>
  requires divides_model<Plan>
auto bind(Model& model, Optimizer& optimizer, communicator& ranks, const device_options& where = {}) {
  return bind<Plan>(model, optimizer, ranks, Plan::strategy_type::sizes(ranks.size()), where);
}
/// The same for a single process.
template <class Plan, class Model, class Optimizer>
auto bind(Model& model, Optimizer& optimizer, const device_options& where = {}) {
  auto alone = std::make_shared<self_communicator>();
  detail::place_model<Plan>(model, *alone, where);
  return bound_run<Optimizer, typename Plan::programs>(detail::once_each(model), named_buffers(model),
                                                       optimizer, std::move(alone),
                                                       detail::strategy_of<Plan>::options());
}

}  // namespace weft
