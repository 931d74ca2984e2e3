// SPDX-License-Identifier: MIT
// Definitions of <weft/tensor/pending_number.hpp>.
#pragma once

#include <array>
#include <cstring>
#include <vector>

#include <weft/base/config.hpp>
#include <weft/tensor/pending_number.hpp>

namespace weft {

WEFT_DEFINE double pending_number::value() const {
  if (of_) {
    value_ = numbers_in(std::span(&of_, 1))[0];
    of_.reset();
  }
  return value_;
}

WEFT_DEFINE recycled_vector<double> numbers_in(std::span<const std::shared_ptr<tensor_state>> all) {
  std::vector<std::array<char, sizeof(double)>> bytes(all.size());
  std::vector<host_copy> copies;
  for (std::size_t i = 0; i < all.size(); ++i) {
    detail::require_memory(*all[i]);
    copies.push_back({bytes[i].data(), all[i]->memory.data(), all[i]->bytes()});
  }
  if (!all.empty()) all[0]->where->download_together(copies);
  recycled_vector<double> numbers;
  for (std::size_t i = 0; i < all.size(); ++i)
    visit_type(all[i]->type, [&]<class T>(T value) {
      std::memcpy(&value, bytes[i].data(), sizeof value);
      numbers.push_back(static_cast<double>(value));
    });
  return numbers;
}

}  // namespace weft
