// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/gradient_sum.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/parallel/gradient_sum.hpp>

namespace weft {
namespace parallel {

WEFT_DEFINE void gradient_sum::add(backend& device, std::shared_ptr<tensor_state> g) {
  std::size_t level = 0;
  for (; deterministic_ ? count_ >> level & 1 : count_ > 0 && level == 0; ++level)
    g = sum(device, levels_[level], g);
  if (deterministic_) {
    if (levels_.size() == level) levels_.emplace_back();
    levels_[level] = std::move(g);
  } else {
    levels_.assign(1, std::move(g));
  }
  ++count_;
}

WEFT_DEFINE std::shared_ptr<tensor_state> gradient_sum::take(backend& device) {
  std::shared_ptr<tensor_state> result;
  for (std::size_t level = 0; level < levels_.size(); ++level) {
    if (!levels_[level]) continue;
    result = result ? sum(device, levels_[level], result) : levels_[level];
    levels_[level].reset();
  }
  count_ = 0;
  return result;
}

}  // namespace parallel
}  // namespace weft
