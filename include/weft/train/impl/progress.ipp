// SPDX-License-Identifier: MIT
// Definitions of <weft/train/progress.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/train/progress.hpp>

namespace weft {

WEFT_DEFINE void progress::show(std::int64_t done, double loss, double tokens_per_second) {
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
    std::fprintf(stderr, "step %lld/%lld  loss %.4f  %.0f tokens/s  %s left\n", static_cast<long long>(done),
                 static_cast<long long>(steps_), loss, tokens_per_second, clock(left).c_str());
  }
}

WEFT_DEFINE std::string progress::clock(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%d:%02d", static_cast<int>(seconds) / 60, static_cast<int>(seconds) % 60);
  return text;
}

}  // namespace weft
