// SPDX-License-Identifier: MIT
// A factor on the loss that keeps small gradients within the range of f16: as large as possible without
// overflow. Steps whose gradients overflow are skipped.
//
//   loss_scaler scaler;
//   run.loss_scale = scaler.scale;          // gradients are multiplied by it
//   if (scaler.update(std::isfinite(norm))) optimizer.step(...);
#pragma once

#include <algorithm>
#include <cstdint>

#include <weft/optim/fields.hpp>

namespace weft {

/// Dynamic loss scaling (Micikevicius et al., 2018), with the defaults of torch.amp.GradScaler.
struct loss_scaler {
  double scale = 65536;  // a power of two, so that scaling does not round
  std::int64_t growth_interval = 2000;
  std::int64_t growth_tracker = 0;  // finite steps since the scale last changed

  /// Updates the scale after a step, `finite` telling whether its gradients are: halves it (not below 2^-24)
  /// if not, doubles it (not above 2^100) after growth_interval finite steps. Returns whether the step should
  /// be applied. Throws value_error if a field is out of range.
  bool update(bool finite) {
    if (!(scale > 0)) detail::refuse_field("loss_scaler", "scale", scale, "above 0");
    if (growth_interval < 1)
      detail::refuse_field("loss_scaler", "growth_interval", static_cast<double>(growth_interval),
                           "1 or more");
    if (!finite) {
      scale = std::max(scale / 2, 0x1p-24);
      growth_tracker = 0;
    } else if (++growth_tracker == growth_interval) {
      scale = std::min(2 * scale, 0x1p100);
      growth_tracker = 0;
    }
    return finite;
  }
};

}  // namespace weft
