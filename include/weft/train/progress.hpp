// SPDX-License-Identifier: MIT
// Progress of a run on stderr: a bar on a terminal, lines elsewhere.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace weft {

/// Shows step, loss, tokens per second and remaining time, on lines at most every 5 seconds.
class progress {
 public:
  explicit progress(std::int64_t steps) : steps_(steps), terminal_(isatty(fileno(stderr)) != 0) {}

  /// To be called after step `done`, counted from 1, of all steps.
  void show(std::int64_t done, double loss, double tokens_per_second) {
    const double elapsed = seconds_since(start_);
    if (first_ == 0) first_ = done - 1;
    const double left = elapsed / static_cast<double>(done - first_) * static_cast<double>(steps_ - done);
    if (terminal_) {
      constexpr int width = 24;
      const int filled = static_cast<int>(width * done / steps_);
      std::string bar(static_cast<std::size_t>(filled), '#');
      bar.resize(width, '.');
      std::fprintf(stderr, "\r[%s] %lld/%lld  loss %.4f  %.0f tokens/s  %s left   ", bar.c_str(),
                   static_cast<long long>(done), static_cast<long long>(steps_), loss, tokens_per_second,
                   clock(left).c_str());
      if (done == steps_) std::fputc('\n', stderr);
    } else if (done == steps_ || done == first_ + 1 || elapsed - shown_ > 5) {
      shown_ = elapsed;
      std::fprintf(stderr, "step %lld/%lld  loss %.4f  %.0f tokens/s  %s left\n",
                   static_cast<long long>(done), static_cast<long long>(steps_), loss, tokens_per_second,
                   clock(left).c_str());
    }
  }

 private:
  using time_point = std::chrono::steady_clock::time_point;
  static double seconds_since(time_point t) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
  }
  static std::string clock(double seconds) {
    char text[32];
    std::snprintf(text, sizeof text, "%d:%02d", static_cast<int>(seconds) / 60,
                  static_cast<int>(seconds) % 60);
    return text;
  }

  std::int64_t steps_, first_ = 0;
  bool terminal_;
  double shown_ = 0;
  time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace weft
