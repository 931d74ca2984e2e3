// SPDX-License-Identifier: MIT
// Computations of optimizers on whole parameters, among the ranks that divide their rows.
//
// n ranks exchange n parameters at a time: each receives all rows of one, computes with it, and returns to
// each rank its rows of the result. The parts of divided layers are gathered for that, and cut again.
#pragma once

#include <weft/optim/whole_tensors.hpp>
#include <weft/parallel/groups.hpp>
#include <weft/parallel/parts.hpp>

namespace weft::parallel {

/// Gives the whole of each parameter to one of the ranks that divide its rows.
class whole_exchange final : public whole_tensors {
 public:
  whole_exchange(const std::vector<unit>& units, const rank_groups& groups, const device& where,
                 const device& messages)
      : units_(units), groups_(groups), where_(where), messages_(messages) {}

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
  /// Executes these, of parameters that the same ranks divide, at most as many as there are ranks.
  void exchange(std::vector<item>& all);
  /// What the ranks send to this one, in their order.
  state_ptr exchanged(communicator& ranks, const state_ptr& packed, const rank_counts& sent,
                      const rank_counts& received) const;
  /// The elements of the result that are those of this rank's part of the layer.
  state_ptr computed(const item& i, const state_ptr& rows) const;

  const std::vector<unit>& units_;
  const rank_groups& groups_;
  device where_, messages_;
  std::vector<std::vector<item>> waiting_;  // by the ranks that divide them
};

}  // namespace weft::parallel

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/whole_exchange.ipp>
#endif
