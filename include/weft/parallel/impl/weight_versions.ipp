// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/weight_versions.hpp>.
#pragma once

#include <algorithm>

#include <weft/base/config.hpp>
#include <weft/parallel/weight_versions.hpp>

namespace weft {
namespace parallel {

WEFT_DEFINE weight_versions::weight_versions(state_dict_t parameters) : parameters_(std::move(parameters)) {
  for (const auto& [name, p] : parameters_) written_.push_back(p->version());
}

WEFT_DEFINE void weight_versions::keep(int micro_batch) {
  kept_.push_back({micro_batch, {}});
  for (const auto& [name, p] : parameters_) kept_.back().memory.push_back(p->memory);
}

WEFT_DEFINE void weight_versions::scope::exchange() {
  for (std::size_t i = 0; i < memory_.size(); ++i) std::swap(of_.parameters_[i].second->memory, memory_[i]);
}

WEFT_DEFINE weight_versions::version& weight_versions::version_of(int micro_batch) {
  return *std::find_if(kept_.begin(), kept_.end(),
                       [&](const version& v) { return v.micro_batch == micro_batch; });
}

WEFT_DEFINE void weight_versions::preserve(std::size_t i) {
  const tensor_state& p = *parameters_[i].second;
  buffer copy;
  for (auto& [micro_batch, memory] : kept_) {
    if (memory[i].data() != p.memory.data() || p.bytes() == 0) continue;
    if (!copy) {
      copy = p.where.allocate(p.bytes());
      copy_elements(*p.where, p.type, copy.data(), p.memory.data(), p.extents.size());
    }
    memory[i] = copy;
  }
}

}  // namespace parallel
}  // namespace weft
