// SPDX-License-Identifier: MIT
// The context of a model whose parameters are distributed by a strategy: the part of a run that does not
// depend on the types of its optimizer and its losses. bind.hpp makes runs.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <weft/optim/loss_scale.hpp>
#include <weft/optim/optimizer_state.hpp>
#include <weft/parallel/bound_model.hpp>
#include <weft/parallel/data_parallel.hpp>
#include <weft/parallel/step_graph.hpp>

namespace weft {

/// Options of `bound_run::step()`.
struct step_options {
  double clip = 0;            // maximum 2-norm of the gradient; 0: no limit
  index_t micro_batches = 1;  // backward passes since the last step, over which the mean is taken
  bool finite = false;  // step(micro_batches, loss) throws non_finite_error instead of updating parameters
  bool graph = false;   // step(micro_batches, loss) is recorded and then replayed by one call, on devices
                        // that record work; no effect on step()
};

/// The results of `step(micro_batches, loss)`, and its communication on this rank.
struct step_result {
  double loss = 0;             // mean over all micro-batches of all ranks
  double norm = 0;             // 2-norm of the gradient before clipping
  traffic sent;                // bytes sent, by kind of operation
  axis_bytes sent_by_axis{};   // bytes in the order of mesh_axes, without control traffic
  double waited_ms = 0;        // time spent waiting for other ranks
  double bubble_fraction = 0;  // pipelines: measured fraction of time spent idle, over all ranks
};

/// A context for a model whose parameters are distributed by a strategy; bound_run adds the optimizer.
class distributed_context : public context {
 public:
  /// Updates the parameters with the mean gradient over ranks and micro-batches, and clears the gradient.
  /// Returns its 2-norm before clipping, which is the same on all ranks and for all strategies. With local
  /// steps, gradient and norm are this rank's own. On one rank the host waits for the device only when it
  /// reads the norm. In f16, a non-finite gradient changes the loss scale and nothing else, and the host
  /// waits for that check. Throws value_error if `clip` is negative or NaN, and usage_error if there was no
  /// backward pass since the last step, or none that reached a parameter; if a tensor of the model has been
  /// replaced since it was bound; if the optimizer has updated parameters of the same names in another model
  /// that is still alive; or if ranks that process different data differ in the number of micro-batches or in
  /// which parameters have gradients.
  pending_number step(const step_options& o = {});

  /// Drops the gradients of the backward passes since the last step, as zero_grad(model) does for a model
  /// that is not bound, and those that tapes of other contexts have left in the model. Calls of join() after
  /// the last of these passes remain in effect. Collective: waits for messages in flight.
  void zero_grad();

  /// The 2-norm of the sum of gradients over ranks and micro-batches; valid after the last backward pass of a
  /// step, and in before_update. Throws usage_error if there was none since the last step. Collective.
  double gradient_norm();
  /// The largest absolute value of these gradients. Collective.
  double gradient_inf_norm();

  /// Calls f once, before the next step changes parameters or the state of the optimizer.
  void before_update(std::function<void()> f) { before_update_.push_back(std::move(f)); }

  /// The loss scale in f16, which is part of checkpoints.
  const loss_scaler& scaler() const { return scaler_; }
  /// Throws value_error if a field is out of range (loss_scaler::check).
  void set_scaler(const loss_scaler& s) {
    s.check();
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
  no_sync_scope no_sync(bool on = true) { return no_sync_scope(prepared(), on); }

  /// For ranks with different numbers of batches: all ranks call it before each batch until it returns 0.
  /// Returns the number of ranks that have a batch. A rank without one computes its last batch again with
  /// weight 0, so that it takes part in all messages; the step averages over the batches that count. A step
  /// of m micro-batches takes m calls, before it or in `loss`: the j-th one says whether batch j counts, and
  /// step(m, loss) throws usage_error after any other number of calls. In a pipeline without a flush, each
  /// update averages over the ranks that have its batch. Buffers are broadcast from the first rank with a
  /// batch (parallel_options::broadcast_buffers). With local steps a rank updates nothing in a step in which
  /// none of its batches counts.
  ///   while (run.join(batch.has_value()) > 0) { ... }
  int join(bool has_batch);

  /// The number of this rank's `index`-th micro-batch among the micro-batches of all ranks in a step. Ranks
  /// that divide the positions of sequences (axis cp), layers or stages have the same numbers. The numbering
  /// follows the order in which gradients are reduced, so that sums are the same on any number of ranks.
  index_t micro_batch(index_t index, index_t per_rank) const {
    const index_t divided = options_.context_ranks, experts = options_.expert_ranks;
    const index_t rank = data_ranks().rank(), size = data_ranks().size() / divided;
    const index_t among = rank / (divided * experts) * experts + rank % experts;
    return options_.reduces_each() ? index * size + among : among * per_rank + index;
  }
  /// As in context. Ranks draw different random numbers, except ranks that divide layers or stages. `batch`
  /// is micro_batch(j, m) for the j-th of this rank's m micro-batches, so that random numbers do not depend
  /// on the number of ranks. begin_step begins a step of one micro-batch on each rank, as binding does.
  void begin_step(std::uint64_t step) {
    begin_micro_batch(step, static_cast<std::uint64_t>(micro_batch(0, 1)));
  }
  void begin_micro_batch(std::uint64_t step, std::uint64_t batch) {
    context::begin_micro_batch(step, static_cast<std::uint64_t>(part_of(static_cast<index_t>(batch))));
  }

  /// Complete copies of all parameters, then of all buffers, by name. Collective.
  [[gnu::cold]] state_dict_t full();
  /// Complete copies of the state of the optimizer, named "kind.parameter". Collective.
  [[gnu::cold]] state_dict_t full_optimizer();

  /// Must be called after other code has set elements of local parameters. `equal`: of all parameters, to the
  /// same elements on all ranks that have them. Collective.
  void reload(bool equal = false) { prepared().reload(equal); }
  /// Drops the state that the gradient hook keeps from step to step.
  void reset_hook() { prepared().reset_hook(); }

  /// What this rank holds of each parameter and buffer of the model.
  std::vector<held_tensor> held_tensors() const;
  /// The parameters that this rank updates.
  const state_dict_t& local() const { return local_; }
  /// All ranks of the run.
  communicator& ranks() const { return *ranks_; }
  const parallel_options& options() const { return options_; }
  /// Throws usage_error before the first step of a pipeline, when the parameters of this rank are not known
  /// yet.
  const parallel::data_parallel_hooks& parallel() const {
    if (!parallel_) refuse_unprepared();
    return *parallel_;
  }
  const parallel::rank_groups& groups() const { return parallel().groups(); }
  /// The ranks that divide layers with this one. Throws usage_error if the policy has no axis tp.
  communicator& layer_ranks() const;

  /// Bytes that this rank has sent along each axis, in the order of mesh_axes, without control traffic.
  virtual axis_bytes sent_by_axis() const { return groups().sent_by_axis(); }

  index_t optimizer_bytes() const { return static_cast<index_t>(training_.state->bytes()); }

 protected:
  /// Type-independent properties of a run's optimizer and programs.
  struct training {
    optimizer_state* state;
    std::int64_t* steps;  // number of steps of the optimizer
    bool scales_loss;     // whether products are in f16, which needs a loss scale
  };

  /// A run that holds no parameters yet; see hold(). Throws usage_error for options out of range, and for a
  /// model without parameters.
  [[gnu::cold]] distributed_context(parallel::bound_model model, const training& of,
                                    std::shared_ptr<communicator> ranks, const parallel_options& o);
  ~distributed_context() = default;

  const parallel::bound_model& model() const { return model_; }
  /// Divides these parameters and buffers among the ranks of `data`, or all ranks if null. For pipelines,
  /// `owners` are the ranks that together hold a copy of the model, and `chunks` gives the chunk that reads
  /// each parameter. `layers`: the ranks that divide layers; these parameters are then this rank's parts.
  /// Elements of experts that other ranks have are freed. Collective.
  [[gnu::cold]] void hold(const state_dict_t& parameters, const state_dict_t& buffers,
                          std::shared_ptr<communicator> data = nullptr,
                          std::shared_ptr<communicator> owners = nullptr, const std::vector<int>& chunks = {},
                          std::shared_ptr<communicator> layers = nullptr);
  /// Sets which ranks have which experts; call before hold(). Throws usage_error for local steps.
  void divide_experts(parallel::expert_division by);
  bool holds_parameters() const { return parallel_.has_value(); }

  /// A parameter or buffer of the whole model.
  struct model_tensor {
    std::string name;
    parallel::state_ptr tensor;
    int owner;  // the rank that exports it; parallel::every_rank if all hold the same
    bool is_buffer;
  };
  /// For runs that hold() only some tensors of the model: `all` lists all tensors in the model's order; the
  /// ranks of `among` hold different ones.
  void hold_some(std::vector<model_tensor> all, std::shared_ptr<communicator> among) {
    distributed_.push_back({std::move(all), std::move(among)});
  }
  /// Frees the elements of a tensor that other ranks hold.
  static void free_elements(const std::string& name, tensor_state& t, bool by_stages = false);

  static void check(const step_options& o);
  /// The passes of one step(m, loss). They start without the gradients and join() calls of earlier passes
  /// that did not reach the end of their step.
  class passes_of_step {
   public:
    explicit passes_of_step(distributed_context& run) : run_(run) { run.begin_passes(); }
    passes_of_step(const passes_of_step&) = delete;
    passes_of_step& operator=(const passes_of_step&) = delete;
    ~passes_of_step() { run_.note_joins(); }
    /// Called when the passes have reached the end of the step.
    void end() const { run_.end_passes(); }

   private:
    distributed_context& run_;
  };
  void begin_passes();
  /// Ends the passes of a step: discards what join() has recorded.
  void end_passes();
  /// Throws comm_error on all ranks that wait for each other within a micro-batch (those along tp, cp and ep)
  /// unless they begin a step of the same number of micro-batches. Collective among them.
  void begin_together(index_t micro_batches) const;
  /// The join() calls so far belong to the passes that have begun.
  void note_joins() { joins_of_passes_ = joins_.size(); }

  /// What join() has recorded for a micro-batch.
  struct joined_batch {
    double weight;         // of this rank's micro-batch: 1 if it counts, otherwise 0
    index_t counted;       // number of ranks whose micro-batch counts
    std::uint64_t passes;  // number of backward_passes() before it
  };
  /// Sets the weight of subsequent losses: `batch`, 0 or 1, and `positions`, for this rank's positions.
  void weigh(double batch, double positions) {
    batch_weight_ = batch;
    position_weight_ = positions;
    loss_weight = batch * positions;
  }
  void weigh_positions(double weight) { weigh(batch_weight_, weight); }
  /// Sets the weight of micro-batch j, if join() has been called for it.
  void weigh_batch(index_t j) {
    const auto at = static_cast<std::size_t>(j);
    if (at < joins_.size()) weigh(joins_[at].weight, position_weight_);
  }
  /// How many of `all` micro-batches of all ranks count.
  index_t counted(index_t all) const {
    index_t joined = 0;
    for (const joined_batch& j : joins_) joined += j.counted;
    return joined > 0 ? joined : all;
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
  /// Sets the members for communication to that since `before`.
  void set_communication(step_result& r, const communication& before) const;
  /// The mean of the losses of all micro-batches, `count` of which count: all of them, unless join() was
  /// called. Throws non_finite_error if `o.finite` and one is not finite.
  step_result mean_of(std::span<const double> losses, index_t count, const step_options& o) const;
  /// Ends a step whose micro-batches have been computed: updates the parameters, sums the `losses` of the
  /// micro-batches of this rank over all ranks, and reports the communication since `before`. Waits for the
  /// device once.
  step_result complete_step(const tensor_list& losses, std::span<const double> weights, const step_options& o,
                            const communication& before) {
    return complete_step(losses, weights, o, before, [&] { return step(o); });
  }
  /// The same step, recorded or replayed (parallel/step_graph.hpp). `read`: the operands of the losses.
  /// `begins`: the random states with which micro-batches begin in `compute`, which evaluates the losses and
  /// runs backward passes. Throws usage_error for work that cannot be recorded.
  step_result graph_step(const void* statement, const runtime::operands& read,
                         std::span<const random_state> begins, const std::function<tensor_list()>& compute,
                         const step_options& o);

  /// Sets whether subsequent backward passes are the last of the step; see no_sync.
  void synchronize(bool on) { parallel_->synchronize(on); }
  /// Declares that ranks divide positions; `by` executes attention over them.
  void divide_context(std::shared_ptr<parallel::context_service> by);
  /// See data_parallel_hooks.
  void take_over(tensor_list withheld, tensor_list found) {
    parallel_->take_over(std::move(withheld), std::move(found));
  }

  /// The ranks that process different data.
  virtual communicator& data_ranks() const { return groups().data(); }
  /// The number of this rank's part of a micro-batch among all parts of all micro-batches of a step.
  index_t part_of(index_t micro_batch) const {
    const index_t divided = options_.context_ranks;
    return micro_batch * divided + data_ranks().rank() / options_.expert_ranks % divided;
  }
  /// Completes the gradients of a step.
  virtual void deliver_gradients();
  /// Drops the gradients of the backward passes since the last step.
  virtual void drop_gradients() { parallel_->drop_gradients(); }
  /// Executes the optimizer's computations on whole parameters in one update.
  parallel::whole_exchange whole_computations() const { return parallel_->whole_computations(); }
  /// Updates all local parameters by the optimizer, with their gradients times `scale`.
  virtual void update_local(const gradient_scale& scale) = 0;
  /// Throws value_error if a setting of the optimizer is out of range.
  virtual void check_optimizer() const = 0;
  /// Calls the functions passed to before_update().
  void begin_update();
  /// Updates all local parameters with the mean gradient of micro-batch `j` of each rank, which must have
  /// been delivered, as update number `updates`, counted from 0. For schedules that update parameters more
  /// than once in a step.
  void update_once(std::int64_t updates, index_t j);
  /// Ends a step after its parameters have been updated.
  void end_step();
  /// Throws usage_error if join() has been called, but not exactly once for each of this rank's
  /// micro-batches.
  void check_joins(index_t micro_batches) const;
  /// How many times join() has been called for the step.
  index_t joins() const { return static_cast<index_t>(joins_.size()); }
  /// Whether this rank includes the gradient of this parameter in norms.
  virtual bool counts(const std::string& name, const tensor_state& p) const;

  /// The number of steps that the optimizer has made.
  std::int64_t optimizer_steps() const { return *training_.steps; }
  bool scales_loss() const { return training_.scales_loss; }
  /// Options of messages that coordinate ranks.
  comm_options control(const std::string& label) const {
    return {.label = parallel::of_run(number_, label), .timeout = options_.timeout, .control = true};
  }

 private:
  [[noreturn, gnu::cold]] static void refuse_unprepared();
  /// Completes the gradients of a step, for `what` to read; throws usage_error if the step had no backward
  /// pass.
  void deliver_for(const char* what);
  parallel::data_parallel_hooks& prepared() {
    if (!parallel_) refuse_unprepared();
    return *parallel_;
  }
  /// Throws usage_error if steps cannot be recorded.
  void require_recordable() const;
  /// The factor that makes sums means over micro-batches and ranks; 0 if no micro-batch counts on a rank that
  /// takes a local step. Discards what join() has recorded.
  double mean_factor(const step_options& o);
  /// Throws usage_error on all ranks that process different data unless they have the same `micro_batches`,
  /// backward passes of all of these or of none, and gradients of the same parameters, which must have been
  /// delivered. Collective among them.
  void require_agreement(index_t micro_batches, index_t passes);
  [[noreturn, gnu::cold]] void refuse_disagreement(index_t micro_batches, index_t passes);
  /// Throws usage_error if no parameter has a gradient, on any rank.
  parallel::gradient_measure measured(const step_options& o, double mean);
  /// Updates the parameters with the measured gradients if any micro-batch counts, and ends the step.
  pending_number apply(const parallel::gradient_measure& measured, bool any_counts = true);
  step_result complete_step(const tensor_list& losses, std::span<const double> weights, const step_options& o,
                            const communication& before, const std::function<pending_number()>& update);
  void set_scale() {
    if (training_.scales_loss) loss_scale = scaler_.scale;
  }
  comm_options in_step(const std::string& label) const {
    return {parallel::of_run(number_, label), options_.timeout, true, steps_};
  }
  /// Tensors of the model; each rank of `among` holds different ones.
  struct distributed_tensors {
    std::vector<model_tensor> all;
    std::shared_ptr<communicator> among;
    const model_tensor& named(const std::string& name) const;
  };
  /// Complete copies of the parameters and buffers, or of the optimizer state, that this rank has a part of.
  state_dict_t whole_of_held();
  state_dict_t whole_state_of_held();
  /// Complete copies of all tensors of `of`, from those that the ranks hold. Collective.
  state_dict_t shared_among(const distributed_tensors& of, const state_dict_t& held) const;
  state_dict_t state_shared_among(const distributed_tensors& of, const state_dict_t& held) const;
  /// Whether this rank counts `p` in norms: if parameters are not sharded, a parameter that all ranks along
  /// ep hold is counted by the first of them.
  bool counts_beside_experts(const tensor_state& p) const;
  /// The gradients that this rank includes in norms: those of rows that it updates and no other owner
  /// updates.
  tensor_list owned_gradients() const;

  parallel::bound_model model_;
  parallel_options options_;
  std::shared_ptr<communicator> ranks_, data_ranks_;
  training training_;
  std::shared_ptr<const void> alive_ = std::make_shared<char>();  // marks this run for its optimizer's state
  std::int64_t number_;                                           // among the runs of these ranks
  std::shared_ptr<parallel::context_service> context_;
  std::optional<parallel::data_parallel_hooks> parallel_;
  state_dict_t local_, compared_;                 // compared_: those of local_ that all data ranks have
  std::vector<distributed_tensors> distributed_;  // experts, then stages of a pipeline
  parallel::expert_division experts_divided_;
  loss_scaler scaler_;
  std::vector<std::function<void()>> before_update_;
  bool begins_update_ = false;  // functions of before_update() are called: the gradients are there
  parallel::step_graphs graphs_;
  std::vector<joined_batch> joins_;  // since the last step
  double batch_weight_ = 1, position_weight_ = 1;
  int counted_first_ = 0;   // the first rank with a batch in the last micro-batch: it has the most
  bool in_passes_ = false;  // in passes of step(m, loss)
  std::size_t joins_of_passes_ = 0;
  std::int64_t steps_ = 0;  // since binding
  std::uint64_t passes_seen_ = 0;
};

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/distributed_context.ipp>
#include <weft/parallel/impl/distributed_context_recorded.ipp>
#include <weft/parallel/impl/distributed_context_whole.ipp>
#endif
