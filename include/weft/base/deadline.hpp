// SPDX-License-Identifier: MIT
// Until when to wait.
//
//   const auto deadline = deadline_after(limit);
//   while (!done() && std::chrono::steady_clock::now() < deadline) ...
#pragma once

#include <algorithm>
#include <chrono>

namespace weft {

/// The time at which `limit` is over, of the steady clock. Limits above a century, as milliseconds::max(),
/// are one: sums of the clock's ticks would overflow. A negative limit is over now.
inline std::chrono::steady_clock::time_point deadline_after(std::chrono::milliseconds limit) {
  constexpr std::chrono::hours century(24 * 36'525);
  return std::chrono::steady_clock::now() +
         std::clamp<std::chrono::milliseconds>(limit, std::chrono::milliseconds(0), century);
}

}  // namespace weft
