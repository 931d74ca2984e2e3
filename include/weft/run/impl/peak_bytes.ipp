// SPDX-License-Identifier: MIT
// Definitions of <weft/run/peak_bytes.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/run/peak_bytes.hpp>

namespace weft {

WEFT_DEFINE std::vector<memory_need> what_fits(std::size_t bytes, std::span<const memory_choice> choices,
                                               bool holds_messages) {
  std::vector<memory_need> fitting;
  for (const memory_choice& c : choices)
    if (const std::size_t peak = peak_bytes(c.step, holds_messages); peak <= bytes)
      fitting.push_back({c.name, peak});
  return fitting;
}

}  // namespace weft
