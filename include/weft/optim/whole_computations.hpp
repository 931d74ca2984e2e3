// SPDX-License-Identifier: MIT
// Computations of optimizers on whole parameters of which each rank updates some rows, such as Muon's on
// matrices; requested by parameter_update::with_whole.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <weft/tensor/state.hpp>

namespace weft {

/// A computation on a whole tensor that is sharded like parameter `name`; this rank has its elements `own`.
struct whole_computation {
  using state = std::shared_ptr<tensor_state>;

  std::string name;
  state own;                                         // of shape [elements]
  std::function<state(const state& whole)> compute;  // of shape [elements] -> [elements]; on one of the ranks
  std::function<void(const state& own)> finish;      // called with this rank's elements of the result
};

/// Executes computations on whole tensors, distributed over the ranks that shard a parameter.
class whole_computations {
 public:
  virtual ~whole_computations() = default;
  /// The extents of the whole parameter `name`.
  virtual shape extents_of(const std::string& name) const = 0;
  /// Executes `c`, now or at the latest in finish(). Collective: all ranks add computations of the same
  /// parameters in the same order.
  virtual void add(whole_computation c) = 0;
  /// Executes all that has been added.
  virtual void finish() = 0;
};

}  // namespace weft
