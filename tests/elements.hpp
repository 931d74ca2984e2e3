// SPDX-License-Identifier: MIT
// The elements of tensors on any device, one after the other, as f32.
#pragma once

#include <memory>
#include <vector>

#include <weft/nn/module.hpp>

namespace weft::test {

inline std::vector<float> elements_of(const tensor_state& t) {
  std::vector<float> elements(static_cast<std::size_t>(t.extents.size()));
  visit_type(t.type, [&]<class T>(T) {
    const std::unique_ptr<T[]> own(new T[elements.size()]);
    detail::download_to(t, own.get());
    for (std::size_t i = 0; i < elements.size(); ++i) elements[i] = static_cast<float>(own[i]);
  });
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
