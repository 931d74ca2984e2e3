// SPDX-License-Identifier: MIT
// Progress of a run on stderr: a bar on a terminal, lines elsewhere.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

namespace weft {

/// Shows step, loss, tokens per second and remaining time; lines are printed at most every 5 seconds.
class progress {
 public:
  explicit progress(std::int64_t steps) : steps_(steps), terminal_(isatty(fileno(stderr)) != 0) {}

  /// To be called after step `done`, counted from 1, of all steps. The remaining time is estimated from the
  /// steps since the first call.
  void show(std::int64_t done, double loss, double tokens_per_second);

 private:
  using time_point = std::chrono::steady_clock::time_point;
  static double seconds_since(time_point t) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
  }
  static std::string clock(double seconds);

  std::int64_t steps_;
  std::optional<std::int64_t> before_;  // number of steps done before the first one shown
  bool terminal_;
  double shown_ = 0;
  time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/train/impl/progress.ipp>
#endif
