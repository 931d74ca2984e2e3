// SPDX-License-Identifier: MIT
// Accumulation of the gradients of micro-batches.
//
// Deterministic mode adds in the order of a binary counter, ((0 1) (2 3)) ((4 5) 6), which is also the order
// in which ranks are added (comm/reduce.hpp), so that results are bitwise the same whether micro-batches are
// on several ranks or in sequence.
#pragma once

#include <vector>

#include <weft/run/add.hpp>

namespace weft::parallel {

/// The running sum of gradients of one parameter.
class gradient_sum {
 public:
  explicit gradient_sum(bool deterministic) : deterministic_(deterministic) {}

  bool empty() const { return count_ == 0; }

  /// Adds `g`, whose elements may be overwritten.
  void add(backend& device, std::shared_ptr<tensor_state> g);

  /// Returns the sum and resets it.
  std::shared_ptr<tensor_state> take(backend& device);

  void clear() {
    levels_.clear();
    count_ = 0;
  }

 private:
  static std::shared_ptr<tensor_state> sum(backend& device, std::shared_ptr<tensor_state>& into,
                                           const std::shared_ptr<tensor_state>& g) {
    runtime::add(device, *into, *g, *into);
    return std::move(into);
  }

  bool deterministic_;
  std::size_t count_ = 0;
  std::vector<std::shared_ptr<tensor_state>> levels_;  // level k: the sum of 2^k gradients
};

}  // namespace weft::parallel

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/gradient_sum.ipp>
#endif
