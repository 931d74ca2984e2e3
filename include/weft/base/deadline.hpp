// SPDX-License-Identifier: MIT
// The time until which to wait.
//
//   const auto deadline = deadline_after(limit);
//   while (!done() && std::chrono::steady_clock::now() < deadline) ...
#pragma once

#include <algorithm>
#include <chrono>

namespace weft {

/// The time, on the steady clock, at which `limit` ends. Limits above a century, such as milliseconds::max(),
/// count as a century, since sums of clock ticks would overflow. A negative limit ends immediately.
inline std::chrono::steady_clock::time_point deadline_after(std::chrono::milliseconds limit) {
  constexpr std::chrono::hours century(24 * 36'525);
  return std::chrono::steady_clock::now() +
         std::clamp<std::chrono::milliseconds>(limit, std::chrono::milliseconds(0), century);
}

}  // namespace weft
