// SPDX-License-Identifier: MIT
// The groups of a rank: ranks that process different data, ranks that share one sharded copy of the
// parameters, and ranks that hold the same shard of different copies.
#pragma once

#include <map>

#include <weft/parallel/context_service.hpp>
#include <weft/parallel/strategy.hpp>

namespace weft::parallel {

/// The mesh of the ranks by which parameters are distributed: ranks along cp, which process other positions
/// of the same sequences, hold copies and are counted along dp and fsdp. Throws usage_error if it does not
/// have `ranks` ranks.
[[gnu::cold]] mesh_sizes parameter_mesh(const parallel_options& o, int ranks);

/// The label of an operation of run number `run` of the same ranks. It differs between runs, so that ranks
/// which execute the steps of two models in different orders get an error.
inline std::string of_run(std::int64_t run, const std::string& label) {
  return run > 0 ? label + " (run " + std::to_string(run) + ")" : label;
}

/// The label of the barrier with which ranks that wait for each other within a micro-batch begin a step. It
/// differs between numbers of micro-batches.
inline std::string step_label(index_t micro_batches) {
  return "a step of " + std::to_string(micro_batches) + " micro-batches";
}

/// The groups of ranks that share one copy of the parameters and that hold equal shards of different copies.
class rank_groups {
 public:
  /// Collective. `owners`: see owners(); by default the ranks of `shards`, for models that are not divided
  /// into stages. Throws usage_error if the number of ranks is not a multiple of the group size.
  [[gnu::cold]] rank_groups(communicator& data, const parallel_options& o,
                            std::shared_ptr<communicator> owners = nullptr);

  /// The mesh of the ranks in data(): copies of the parameters along dp, their shards along fsdp.
  const mesh_sizes& sizes() const { return sizes_; }

  /// The ranks that process different data and train the same parameters: gradients are averaged over them.
  communicator& data() const { return *data_; }
  /// shards(): the ranks of `data` that share one copy of the parameters, sharded by rows. replicas(): the
  /// ranks that hold the same rows as this rank.
  communicator& shards() const { return *shards_; }
  communicator& replicas() const { return *replicas_; }
  /// The ranks that together hold one copy of the model. Each row is owned by one of them, which includes it
  /// in norms.
  communicator& owners() const { return *owners_; }
  /// The ranks that divide layers with this one and process the same data; null if layers are not divided.
  communicator* layers() const { return layers_.get(); }
  void divide_layers(std::shared_ptr<communicator> among) { layers_ = std::move(among); }
  /// If a parameter has fewer `units` than there are ranks in layers(), forms the groups of ranks that have
  /// the same unit. Collective over layers().
  [[gnu::cold]] void share_units(index_t units);
  /// The ranks among layers() that have the same one of `units` units as this rank; null if no other rank has
  /// it.
  communicator* sharing(index_t units) const {
    const auto found = sharing_.find(units);
    return found == sharing_.end() ? nullptr : found->second.get();
  }
  /// Attention over the positions of several ranks; null if each rank has all positions of its sequences.
  context_service* context() const { return context_.get(); }
  void divide_context(std::shared_ptr<context_service> by) { context_ = std::move(by); }
  /// `among`: the ranks that divide experts with this one. Of the ranks that have the same experts, `shards`
  /// shard their rows, and `replicas` hold the same rows.
  void divide_experts(std::shared_ptr<communicator> among, std::shared_ptr<communicator> shards,
                      std::shared_ptr<communicator> replicas) {
    experts_ = std::move(among);
    expert_shards_ = std::move(shards);
    expert_replicas_ = std::move(replicas);
  }
  /// Whether this rank is the first of the ranks that hold the same rows.
  bool is_first_copy() const { return (expert_replicas_ ? expert_replicas_ : replicas_)->rank() == 0; }
  int part() const { return shards_->rank(); }
  int parts() const { return shards_->size(); }

  comm_options labelled(const std::string& label, bool control = false) const {
    return {of_run(run_, label), timeout_, control, step_};
  }
  /// Sets the number of this run among the runs of the same ranks, counted from 0.
  void set_run(std::int64_t number) { run_ = number; }
  /// Sets the step of subsequent operations.
  void set_step(std::int64_t step) { step_ = step; }

  /// Bytes sent by this rank and time spent waiting, over all groups.
  traffic sent() const {
    traffic t;
    for_each_group([&](const communicator& c) { t += c.sent(); });
    return t;
  }
  /// The same along each axis, without control traffic. Messages among all data ranks count as dp.
  axis_bytes sent_by_axis() const;
  double waited_ms() const {
    double t = 0;
    for_each_group([&](const communicator& c) { t += c.waited_ms(); });
    return t;
  }

 private:
  template <class F>
  void for_each_group(F f) const {
    f(*data_);
    for (const communicator* c : {shards_.get(), replicas_.get()})
      if (c != data_) f(*c);
    if (layers_) f(*layers_);
    for (const auto& [units, ranks] : sharing_) f(*ranks);
    if (context_) f(context_->ranks());
    if (experts_) f(*experts_), f(*expert_shards_), f(*expert_replicas_);
  }

  /// `apart`: as in group_along.
  [[gnu::cold]] std::shared_ptr<communicator> along(mesh_axis a, const char* label, bool apart) const;

  communicator* data_;
  mesh_sizes sizes_;
  std::chrono::milliseconds timeout_;
  std::int64_t run_ = 0, step_ = -1;
  std::shared_ptr<communicator> shards_, replicas_, owners_, layers_;
  std::shared_ptr<communicator> experts_, expert_shards_, expert_replicas_;
  std::map<index_t, std::shared_ptr<communicator>> sharing_;  // by number of units
  std::shared_ptr<context_service> context_;
};

}  // namespace weft::parallel

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/groups.ipp>
#endif
