// SPDX-License-Identifier: MIT
// Computations of optimizers on whole parameters, distributed over the ranks that shard them or hold copies
// of them.
//
// n ranks exchange n parameters at a time: each rank receives all rows of one, computes with it, and returns
// to each rank its rows of the result. Ranks with copies only send the results. Parts of divided layers are
// gathered before and cut again after the computation.
#pragma once

#include <weft/optim/whole_computations.hpp>
#include <weft/parallel/groups.hpp>
#include <weft/parallel/parts.hpp>

namespace weft::parallel {

/// Gives each whole parameter to one of the ranks that shard it or hold copies of it.
class whole_exchange final : public whole_computations {
 public:
  /// `alike`: whether copies of a parameter have the same elements.
  whole_exchange(const std::vector<unit>& units, const rank_groups& groups, const device& where,
                 const device& messages, bool alike)
      : units_(units), groups_(groups), where_(where), messages_(messages), alike_(alike) {}

  shape extents_of(const std::string& name) const override { return found(name).what->whole->whole(); }
  void add(whole_computation c) override;
  void finish() override {
    for (queue& q : waiting_) exchange(q);
  }

 private:
  struct place {
    const unit* of;
    const member* what;
  };
  struct item {
    place at;
    whole_computation computation;
  };
  struct queue {
    communicator* ranks;  // which distribute the items
    std::vector<item> items;
  };

  /// Throws value_error if there is no such parameter.
  place found(const std::string& name) const;
  /// The ranks that distribute the computations on the parameters of a unit.
  communicator& sharing(const unit& u) const { return u.parts() > 1 || !alike_ ? *u.shards : *u.replicas; }
  /// Executes the computations of a queue, at most as many as there are ranks, and empties it.
  void exchange(queue& q);
  /// This rank's elements of all results, one result after another.
  state_ptr results(const std::vector<item>& all, communicator& ranks) const;
  /// A message of `count` elements that `start` receives, as a tensor on the device of the parameters.
  template <class Start>
  state_ptr received(index_t count, Start start) const;
  /// The elements of the result that belong to this rank's part of the layer.
  state_ptr computed(const item& i, const state_ptr& rows) const;

  const std::vector<unit>& units_;
  const rank_groups& groups_;
  device where_, messages_;
  bool alike_;
  std::vector<queue> waiting_;  // in the order in which all ranks first use them
};

}  // namespace weft::parallel

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/whole_exchange.ipp>
#endif
