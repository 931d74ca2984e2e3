// SPDX-License-Identifier: MIT
// What optimizers compute of whole parameters, as Muon of matrices, where each rank updates some rows:
// parameter_update::with_whole asks for it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <weft/tensor/state.hpp>

namespace weft {

/// A computation on the whole of a tensor of which this rank has the elements `own`, as it has those of
/// parameter `name`.
struct whole_computation {
  using state = std::shared_ptr<tensor_state>;

  std::string name;
  state own;                                         // of shape [elements]
  std::function<state(const state& whole)> compute;  // both of shape [elements]; on one of the ranks
  std::function<void(const state& own)> finish;      // takes the elements that this rank has of the result
};

/// Executes computations on whole tensors, which the ranks that divide a parameter share out.
class whole_computations {
 public:
  virtual ~whole_computations() = default;
  /// The extents of the whole of parameter `name`.
  virtual shape extents_of(const std::string& name) const = 0;
  /// Executes it, now or by the next finish(). Collective: all ranks add computations of the same parameters
  /// in the same order.
  virtual void add(whole_computation c) = 0;
  /// Executes all that has been added.
  virtual void finish() = 0;
};

}  // namespace weft
