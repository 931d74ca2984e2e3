// SPDX-License-Identifier: MIT
// A factor on the loss that keeps small gradients within the range of f16: as large as possible without
// overflow. Steps whose gradients overflow are skipped.
//
//   c.loss_scale = scaler.scale;                         // before each step: gradients are multiplied by it
//   ...                                                  // forward and backward
//   const double factor = 1 / scaler.scale, norm = gradient_norm(parameters_of(model), c);
//   if (scaler.update(std::isfinite(norm))) optimizer.step(model, factor, c);
//   else zero_grad(model);                               // otherwise the next gradients are added to these
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <weft/optim/fields.hpp>

namespace weft {

/// Dynamic loss scaling (Micikevicius et al., 2018), with the defaults of torch.amp.GradScaler.
struct loss_scaler {
  double scale = 65536;  // a power of two, so that scaling does not round
  std::int64_t growth_interval = 2000;
  std::int64_t growth_tracker = 0;  // finite steps since the scale last changed
  static constexpr double least = 0x1p-24, most = 0x1p100;  // bounds of the scale

  /// Throws value_error unless the scale is a power of two from 2^-24 to 2^100, the interval from 1 to 2^53,
  /// and the tracker at least 0 and below the interval.
  void check() const {
    const auto require = [](bool holds, const char* field, double value, const char* what) {
      if (!holds) detail::refuse_field("loss_scaler", field, value, what);
    };
    int exponent = 0;
    require(scale >= least && scale <= most && std::frexp(scale, &exponent) == 0.5, "scale", scale,
            "a power of two from 2^-24 to 2^100");
    require(growth_interval >= 1 && growth_interval <= std::int64_t{1} << 53, "growth_interval",
            static_cast<double>(growth_interval), "a value from 1 to 2^53");
    require(growth_tracker >= 0 && growth_tracker < growth_interval, "growth_tracker",
            static_cast<double>(growth_tracker), "a value from 0 to below growth_interval");
  }

  /// Updates the scale after a step, where `finite` says whether its gradients were finite: halves the scale
  /// (not below 2^-24) if they were not, doubles it (not above 2^100) after growth_interval finite steps.
  /// Returns whether the step should be applied. Throws value_error if a field is out of range, as `check`
  /// does.
  bool update(bool finite) {
    check();
    if (!finite) {
      scale = std::max(scale / 2, least);
      growth_tracker = 0;
    } else if (++growth_tracker == growth_interval) {
      scale = std::min(2 * scale, most);
      growth_tracker = 0;
    }
    return finite;
  }
};

}  // namespace weft
