// SPDX-License-Identifier: MIT
// Learning rates as functions of the step, counted from 0.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

#include <weft/optim/fields.hpp>

namespace weft {

/// Linear warm-up lr (s + 1) / warmup, then constant; or a cosine (Loshchilov and Hutter, 2017) or a line
/// from lr to `final_lr` at `steps`, where it stays; or lr times gamma^(s / every), in which the steps of the
/// warm-up count.
struct schedule {
  enum class shape { constant, cosine, step, linear };
  shape kind = shape::constant;
  double lr = 1e-3;
  std::int64_t warmup = 0;
  std::int64_t steps = 0;  // cosine and linear: where the rate is final; must be set, to no less than warmup
  std::int64_t every = 1;  // step: how often
  double gamma = 0.1;      // step: by how much
  double final_lr = 0;     // cosine and linear

  /// The learning rate of step `s`, counted from 0. Throws value_error, naming the field, if a field or the
  /// step is out of range.
  double at(std::int64_t s) const {
    require(s >= 0, "a step", static_cast<double>(s), "0 or more");
    require(lr >= 0, "lr", lr, "0 or more");
    require(warmup >= 0, "warmup", static_cast<double>(warmup), "0 or more");
    require(steps >= 0, "steps", static_cast<double>(steps), "0 or more");
    require(every > 0, "every", static_cast<double>(every), "1 or more");
    require(gamma >= 0, "gamma", gamma, "0 or more");
    require(final_lr >= 0, "final_lr", final_lr, "0 or more");
    const bool ends = kind == shape::cosine || kind == shape::linear;
    require(!ends || steps >= std::max<std::int64_t>(warmup, 1), "steps", static_cast<double>(steps),
            "1 or more and at least warmup, as a cosine or a line needs");
    if (s < warmup) return lr * static_cast<double>(s + 1) / static_cast<double>(warmup);
    if (ends) {
      if (s >= steps) return final_lr;
      const double done = static_cast<double>(s - warmup) / static_cast<double>(steps - warmup);
      const double left = kind == shape::linear ? 1 - done : 0.5 * (1 + std::cos(std::numbers::pi * done));
      return final_lr + (lr - final_lr) * left;
    }
    if (kind == shape::step) return lr * std::pow(gamma, static_cast<double>(s / every));
    return lr;
  }

 private:
  static void require(bool holds, const char* field, double value, const char* what) {
    if (!holds) detail::refuse_field("schedule", field, value, what);
  }
};

}  // namespace weft
