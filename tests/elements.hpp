// SPDX-License-Identifier: MIT
// The elements of f32 tensors that any device holds, one after the other.
#pragma once

#include <vector>

#include <weft/nn/module.hpp>

namespace weft::test {

inline std::vector<float> elements_of(const tensor_state& t) {
  std::vector<float> elements(static_cast<std::size_t>(t.extents.size()));
  detail::download_to(t, elements.data());
  return elements;
}
inline std::vector<float> elements_of(const state_dict_t& tensors) {
  std::vector<float> all;
  for (const auto& [name, t] : tensors) {
    const std::vector<float> of_one = elements_of(*t);
    all.insert(all.end(), of_one.begin(), of_one.end());
  }
  return all;
}

}  // namespace weft::test
