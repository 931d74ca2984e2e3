// SPDX-License-Identifier: MIT
// The ranks that divide experts among themselves, as the engine sees them.
#pragma once

#include <weft/tensor/state.hpp>

namespace weft::runtime {

/// Interface of a group of ranks, each of which has a range of consecutive experts (parts as in
/// shape/placement.hpp); context::experts holds at most one. All ranks make the same calls in the same order,
/// whether or not rows are routed to them.
class expert_ranks {
 public:
  using counts = recycled_vector<index_t>;

  virtual ~expert_ranks() = default;
  virtual int size() const = 0;
  virtual int rank() const = 0;
  /// The numbers of all ranks, in rank order; each rank contributes equally many.
  virtual counts gather(const counts& mine) = 0;
  /// Sends the elements of `in` in rank order, `sent[r]` of them to rank r, and receives those of `out`
  /// likewise.
  virtual void exchange(const std::shared_ptr<tensor_state>& in, const std::shared_ptr<tensor_state>& out,
                        const counts& sent, const counts& received) = 0;
};

}  // namespace weft::runtime
