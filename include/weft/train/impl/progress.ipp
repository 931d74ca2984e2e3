// SPDX-License-Identifier: MIT
// Definitions of <weft/train/progress.hpp>.
#pragma once

#include <algorithm>

#include <weft/base/config.hpp>
#include <weft/base/number.hpp>
#include <weft/train/progress.hpp>

namespace weft {

WEFT_DEFINE void progress::show(std::int64_t done, double loss, double tokens_per_second) {
  const double elapsed = seconds_since(start_);
  const bool is_first = !before_;
  if (is_first) before_ = done - 1;
  const auto made = static_cast<double>(std::max<std::int64_t>(done - *before_, 1)),
             missing = static_cast<double>(std::max<std::int64_t>(steps_ - done, 0));
  const double left = elapsed / made * missing;
  const std::string figures = "loss " + detail::fixed(loss, 4) + "  " + detail::fixed(tokens_per_second, 0) +
                              " tokens/s  " + clock(left) + " left";
  if (terminal_) {
    constexpr int width = 24;
    const double share = done < steps_ ? static_cast<double>(done) / static_cast<double>(steps_) : 1;
    std::string bar(static_cast<std::size_t>(width * std::clamp(share, 0.0, 1.0)), '#');
    bar.resize(width, '.');
    std::fprintf(stderr, "\r[%s] %lld/%lld  %s   ", bar.c_str(), static_cast<long long>(done),
                 static_cast<long long>(steps_), figures.c_str());
    if (done == steps_) std::fputc('\n', stderr);
  } else if (done == steps_ || is_first || elapsed - shown_ > 5) {
    shown_ = elapsed;
    std::fprintf(stderr, "step %lld/%lld  %s\n", static_cast<long long>(done), static_cast<long long>(steps_),
                 figures.c_str());
  }
}

WEFT_DEFINE std::string progress::clock(double seconds) {
  char text[32];
  const auto whole = static_cast<long long>(seconds);
  std::snprintf(text, sizeof text, "%lld:%02lld", whole / 60, whole % 60);
  return text;
}

}  // namespace weft
