// SPDX-License-Identifier: MIT
// Learning rates as functions of the step, counted from 0.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace weft {

/// Linear warm-up lr (s + 1) / warmup, then constant or a cosine down to 0 at `steps`, or a factor
/// `gamma` every `every` steps.
struct schedule {
  enum class shape { constant, cosine, step };
  shape kind = shape::constant;
  double lr = 1e-3;
  std::int64_t warmup = 0;
  std::int64_t steps = 0;   // cosine: where the rate reaches 0
  std::int64_t every = 1;   // step: how often
  double gamma = 0.1;       // step: by how much

  double at(std::int64_t s) const {
    if (s < warmup) return lr * static_cast<double>(s + 1) / static_cast<double>(warmup);
    if (kind == shape::cosine && steps > warmup) {
      const double done = static_cast<double>(s - warmup) / static_cast<double>(steps - warmup);
      return 0.5 * lr * (1 + std::cos(std::numbers::pi * std::min(done, 1.0)));
    }
    if (kind == shape::step) return lr * std::pow(gamma, static_cast<double>(s / every));
    return lr;
  }
};

}  // namespace weft
