// SPDX-License-Identifier: MIT
// The versions of a stage's parameters that micro-batches in flight read, for schedules that update
// parameters after each backward step (weight stashing; PipeDream, Narayanan et al., 2019).
//
// The backward step of a micro-batch reads the elements that its forward step has read, regardless of updates
// in between. The newest version stays in the memory of the parameters, so that all references to it read the
// newest elements; an update first copies the elements that a micro-batch in flight still needs.
#pragma once

#include <utility>
#include <vector>

#include <weft/parallel/unit.hpp>

namespace weft::parallel {

/// The stored versions of some parameters.
class weight_versions {
 public:
  explicit weight_versions(state_dict_t parameters);
  weight_versions(const weight_versions&) = delete;
  weight_versions& operator=(const weight_versions&) = delete;

  /// From now until release(), the micro-batch reads the version that is the newest now.
  void keep(int micro_batch);
  void release(int micro_batch) { kept_.erase(kept_.begin() + (&version_of(micro_batch) - kept_.data())); }

  /// During its lifetime, the parameters have the elements of the version that a micro-batch keeps.
  class scope {
   public:
    scope(weight_versions& of, int micro_batch) : of_(of), memory_(of.version_of(micro_batch).memory) {
      exchange();
    }
    scope(const scope&) = delete;
    scope& operator=(const scope&) = delete;
    ~scope() { exchange(); }

   private:
    void exchange();
    weight_versions& of_;
    std::vector<buffer>& memory_;
  };

  /// Updates the parameters by `update()`, which changes the newest version only: elements of parameters with
  /// a gradient that a micro-batch keeps are copied before.
  template <class F>
  void update(F update) {
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (parameters_[i].second->grad) preserve(i);
    update();
    // Statements of the step were written earlier and are valid for the version that their micro-batch reads.
    for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].second->version() = written_[i];
  }

  /// After the last update of a step: statements written before are out of date.
  void finish() const {
    for (const auto& [name, p] : parameters_) ++p->version();
  }

 private:
  /// The version that a micro-batch in flight reads.
  struct version {
    int micro_batch;
    std::vector<buffer> memory;  // by parameter
  };
  version& version_of(int micro_batch);

  /// Gives micro-batches that read the newest version of a parameter a copy, one for all of them.
  void preserve(std::size_t i);

  state_dict_t parameters_;
  std::vector<std::uint64_t> written_;  // tensor_state::version at the beginning of the step
  std::vector<version> kept_;
};

}  // namespace weft::parallel

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/weight_versions.ipp>
#endif
