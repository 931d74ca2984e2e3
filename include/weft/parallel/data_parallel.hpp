// SPDX-License-Identifier: MIT
// Data parallelism, with or without sharding: gathers parameters and reduces gradients around the programs of
// a context.
//
// Before a program reads a sharded parameter, its unit is gathered (gather.hpp). When a backward pass has
// completed the gradients of a unit, their reduction starts (reduce.hpp). Both make progress between the
// steps of later programs.
#pragma once

#include <unordered_map>

#include <weft/parallel/first_values.hpp>
#include <weft/parallel/gather.hpp>
#include <weft/parallel/layers.hpp>
#include <weft/parallel/reduce.hpp>
#include <weft/parallel/whole_exchange.hpp>

namespace weft::parallel {

/// The parameters of a run, marked as belonging to it.
class parameters_in_run {
 public:
  parameters_in_run() = default;
  parameters_in_run(const parameters_in_run&) = delete;
  parameters_in_run& operator=(const parameters_in_run&) = delete;
  ~parameters_in_run() {
    for (const auto& [p, divides_rows] : all_) {
      --p->runs;
      if (divides_rows) p->rows_in_run = false;
    }
  }
  void add(const state_ptr& p, bool divides_rows) {
    all_.emplace_back(p, divides_rows);
    ++p->runs;
    if (divides_rows) p->rows_in_run = true;
  }

 private:
  std::vector<std::pair<state_ptr, bool>> all_;
};

/// Gathers parameters before programs read them and reduces the gradients that backward passes compute.
class data_parallel_hooks : public runtime::execution_hooks {
 public:
  /// Replaces parameters and buffers by those of rank 0, which sends only what differs. Deferred parameters
  /// are initialized; for sharded ones, each rank draws its own rows. For divided layers, `parameters` are
  /// the parts of this rank. `owners` and `chunks`: see rank_groups and divided_into_units. `experts`: how
  /// the experts among `parameters` are divided, the same on all replicas. Collective.
  [[gnu::cold]] data_parallel_hooks(const state_dict_t& parameters, state_dict_t buffers, communicator& ranks,
                                    const parallel_options& o, const device& where,
                                    std::shared_ptr<communicator> owners = nullptr,
                                    const std::vector<int>& chunks = {}, const expert_division& experts = {});

  void before_program(operands leaves, const runtime::purpose& why) override;
  void after_program(operands leaves, const runtime::purpose& why) override;

  void before_backward(uses all) override;
  void after_entry(uses leaves) override;
  bool withholds(const tensor_state& t) const override;
  void after_backward(const runtime::tape_identity& tape) override { gatherer_.finish(tape); }
  void end_backward() noexcept override { passes_.pop_back(); }

  /// During subsequent backward passes, the gradients of `withheld` are not reduced, because another backward
  /// pass completes them. The gradients of `found`, begun by earlier passes, are complete even if a pass adds
  /// nothing to them.
  void take_over(tensor_list withheld, tensor_list found) {
    withheld_ = std::move(withheld);
    found_ = std::move(found);
  }

  void poll() override {
    gatherer_.poll();
    reducer_.poll();
    collectives_.poll();
  }
  void exchange(std::string_view op, const attributes& at, const strided& in, const strided& out,
                int result) override;
  void wait_for(int result) override { collectives_.wait_for(result); }
  void abandon() noexcept override { collectives_.abandon(); }
  state_ptr placed(const state_ptr& value, const placement& to) override {
    return parallel::placed(value, to, *groups_.layers(), groups_.labelled("activations"));
  }
  bool attend(std::string_view op, const native_operands& o) override;
  void gather_choices(runtime::row_choices& rows, const shape& operand) override;

  /// Sets whether subsequent backward passes are the last of their step, and therefore start the reductions
  /// that are made once per step.
  void synchronize(bool on) { synchronizes_ = on; }
  bool synchronizes() const { return synchronizes_; }

  /// Waits until all gradients are reduced, and stores them as gradients of the local parameters. Gradients
  /// that tapes of other contexts have left at parameters are reduced too, as if they were of this run.
  void deliver_gradients();

  /// Whether tapes of other contexts have left gradients at parameters.
  bool has_other_gradients() const;

  /// Drops all gradients of parameters, also those not reduced, for example of a backward pass that failed or
  /// that belonged to another run. Waits for messages in flight.
  void drop_gradients();

  /// Called after the local parameters have changed: discards gathered copies.
  void parameters_changed() {
    forget_delivered();
    gatherer_.invalidate();
  }

  /// Broadcasts the buffers of rank `from` among the ranks that process different data.
  void broadcast_buffers(int from);
  /// Drops the state that gradient hooks keep from step to step.
  void reset_hook() { reducer_.reset_hook(); }

  /// Replaces the parameters that have changed on any rank by their mean over all ranks. Only without
  /// sharding.
  void average_parameters();
  /// Called after other code has set elements of local parameters.
  void reload(bool equal);

  /// The parameters that this rank updates, in the order of the model.
  state_dict_t local() const;
  /// Those of local() that all ranks which process different data have rows of: all except parameters of
  /// experts.
  state_dict_t local_of_all_ranks() const;
  /// Tensors that every rank holds completely and that optimizers do not change.
  const state_dict_t& buffers() const { return buffers_; }

  /// Executes the optimizer's computations on whole parameters in one update.
  whole_exchange whole_computations() const {
    return {units_, groups_, where_, messages_, options_.local_steps == 1};
  }

  /// The ranks that shard parameter `name`.
  communicator& shards_of(const std::string& name) const {
    return *units_[static_cast<std::size_t>(place_of(units_, name).unit)].shards;
  }
  /// A complete copy of the tensor whose rows `local` are distributed like those of parameter `name`. Throws
  /// value_error if there is no such parameter, or `local` has the wrong size. Collective.
  [[gnu::cold]] state_ptr whole_of(const std::string& name, const state_ptr& local);
  /// What this rank holds of parameters and buffers.
  [[gnu::cold]] std::vector<held_tensor> held_tensors() const;

  /// Declares that the parameters of divided layers are this rank's parts among the ranks `among`. Collective
  /// over `among`.
  [[gnu::cold]] void divide_layers(std::shared_ptr<communicator> among);

  const rank_groups& groups() const { return groups_; }
  rank_groups& groups() { return groups_; }

  index_t parameter_bytes() const;
  /// Size of the gradients that are kept until the step.
  index_t gradient_bytes() const { return reducer_.bytes(); }

  /// Throws value_error if a parameter is not f32 and so cannot be trained.
  [[gnu::cold]] static void check(const std::string& name, const tensor_state& p);

 private:
  void forget_delivered() {
    if (!std::exchange(delivered_, false)) return;
    for (unit& u : units_)
      for (member& m : u.members) {
        if (m.reduced) m.local->grad.reset();  // gradients that the step has not used
        gradient_reducer::forget(m);
      }
  }

  /// Whether this rank saves the elements of `t` that several of the ranks that divide layers have.
  bool is_first_in_layer(const tensor_state& t) const {
    return parallel::is_first_in_layer(t, groups_.layers() ? groups_.layers()->rank() : 0);
  }

  /// Sums the gradients of parameters that several of the ranks that divide layers have the same elements of.
  void add_shared();

  /// Reduces the gradients of a unit, except those that are withheld.
  void take(int u);
  /// Whether the member has a gradient that this run has not taken.
  bool is_left(const member& m) const { return m.whole->grad && !withholds(*m.whole); }
  /// Throws usage_error if another run has gradients of the member.
  static void require_no_other_run(const member& m);
  /// The whole of a parameter, or of a tensor sharded like it, gathered from the parts of all ranks.
  [[gnu::cold]] state_ptr whole_layer(const member& m, const state_ptr& part);

  unit& unit_at(int u) { return units_[static_cast<std::size_t>(u)]; }

  /// Replaces elements by the results of the operations that `start` begins, all concurrently.
  template <class F>
  void replace(const state_dict_t& tensors, F start) {
    std::vector<std::pair<state_ptr, work>> under_way;
    for (const auto& [name, t] : tensors) {
      const state_ptr message = reachable(messages_, t);
      under_way.emplace_back(message, start(elements_of(*message), name));
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto& [message, arrives] = under_way[i];
      const state_ptr& t = tensors[i].second;
      arrives.wait();
      if (message != t) copy_rows(t, 0, message, 0, t->extents.size());
      ++t->version();
    }
  }

  /// Whether this rank's rows have memory of their own.
  bool apart(const unit& u) const { return options_.divide == sharding::parameters && u.parts() > 1; }
  /// The units of all parameters; the units of experts are last.
  [[gnu::cold]] std::vector<unit> divided_units(const state_dict_t& parameters,
                                                const expert_division& experts,
                                                const std::vector<int>& chunks) const;

  /// Creates the local parameters: tensors that refer to rows of the whole, or to rows in separate memory.
  [[gnu::cold]] void divide(unit& u);

  [[gnu::cold]] void offload(unit& u, const device& home);

  /// The units that contain some of these operands, with the members among them; all members for units that
  /// stay gathered.
  std::vector<std::pair<int, std::vector<int>>> by_unit(operands leaves);

  parallel_options options_;
  device where_, messages_;
  rank_groups groups_;
  std::vector<unit> units_;
  state_dict_t buffers_;
  std::unordered_map<tensor_state*, member_place> places_;
  /// A backward pass in progress.
  struct backward_pass {
    std::unordered_map<tensor_state*, int> uses;  // number of cotangents still to come
    std::vector<int> waiting;                     // by unit: number of members with incomplete gradients
  };
  std::vector<backward_pass> passes_;  // nested: each runs in a gradient hook of the one before
  parameter_gatherer gatherer_;
  gradient_reducer reducer_;
  parallel::started_collectives collectives_;
  tensor_list withheld_, found_;
  bool synchronizes_ = true;
  bool delivered_ = false;  // the gradients of this step have been stored in the local parameters
  parameters_in_run own_;
};

}  // namespace weft::parallel

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/data_parallel.ipp>
#endif
