// SPDX-License-Identifier: MIT
// Time limits that do not count pauses of this process: a job that is stopped as a whole (SIGSTOP, a
// debugger, a sleeping laptop) and continues later is not late.
//
//   running_clock ran;
//   while (!done() && ran.elapsed() < limit) ...  // at least 10 times a second
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace weft {

/// Measures time during which this process runs.
class running_clock {
 public:
  using clock = std::chrono::steady_clock;

  /// The time since construction; a longer time than `longest` between two calls counts as `longest`.
  std::chrono::milliseconds elapsed() {
    const auto now = clock::now();
    elapsed_ += std::min<clock::duration>(now - last_, longest);
    last_ = now;
    return std::chrono::duration_cast<std::chrono::milliseconds>(elapsed_);
  }

  static constexpr std::chrono::milliseconds longest{100}, between_calls{longest / 2};

 private:
  clock::time_point last_ = clock::now();
  clock::duration elapsed_{0};
};

/// Waits until over(), for at most `limit` of the time during which this process runs; returns over().
template <class Over>
bool wait_while_running(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                        std::chrono::milliseconds limit, Over over) {
  for (running_clock ran; !over();) {
    const auto elapsed = ran.elapsed();
    if (elapsed >= limit) return false;
    changed.wait_for(lock, std::min(limit - elapsed, running_clock::between_calls), over);
  }
  return true;
}

}  // namespace weft
