// SPDX-License-Identifier: MIT
// Computations of optimizers on whole parameters, shared out among the ranks that divide their rows, or that
// have copies of all rows.
//
// n ranks exchange n parameters at a time: each receives all rows of one, computes with it, and returns to
// each rank its rows of the result. Those that have copies only send the results. The parts of divided layers
// are gathered for that, and cut again.
#pragma once

#include <weft/optim/whole_computations.hpp>
#include <weft/parallel/groups.hpp>
#include <weft/parallel/parts.hpp>

namespace weft::parallel {

/// Gives the whole of each parameter to one of the ranks that divide its rows, or have copies.
class whole_exchange final : public whole_computations {
 public:
  /// `alike`: whether copies of a parameter have the same elements.
  whole_exchange(const std::vector<unit>& units, const rank_groups& groups, const device& where,
                 const device& messages, bool alike)
      : units_(units), groups_(groups), where_(where), messages_(messages), alike_(alike) {}

  shape extents_of(const std::string& name) const override { return found(name).what->whole->whole(); }
  void add(whole_computation c) override;
  void finish() override {
    for (std::vector<item>& q : waiting_) exchange(q);
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

  /// Throws value_error if there is no such parameter.
  place found(const std::string& name) const;
  /// The ranks that share out computations with the parameters of a unit.
  communicator& sharing(const unit& u) const { return u.parts() > 1 || !alike_ ? *u.shards : *u.replicas; }
  /// Executes these, of parameters that the same ranks share out, at most as many as there are ranks.
  void exchange(std::vector<item>& all);
  /// The results of all, one after another: of each the elements that this rank has.
  state_ptr results(const std::vector<item>& all, communicator& ranks) const;
  /// A message of `count` elements that `start` receives, as a tensor on the device of the parameters.
  template <class Start>
  state_ptr received(index_t count, Start start) const;
  /// The elements of the result that are those of this rank's part of the layer.
  state_ptr computed(const item& i, const state_ptr& rows) const;

  const std::vector<unit>& units_;
  const rank_groups& groups_;
  device where_, messages_;
  bool alike_;
  std::vector<std::vector<item>> waiting_;  // by the ranks that share them out
};

}  // namespace weft::parallel

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/whole_exchange.ipp>
#endif
