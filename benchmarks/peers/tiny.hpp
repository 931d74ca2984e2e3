// SPDX-License-Identifier: MIT
// Sizes and helpers of training steps so small that the overhead of a statement shows.
#pragma once

#include "ops.hpp"

namespace tiny {

inline constexpr long batch = 32, features = 784, hidden = 128, classes = 10;  // MLP, SGD
inline constexpr long sequence = 32, cell_batch = 8, cell_width = 64;  // LSTM cell, one statement per step
inline constexpr long scalar_steps = 100;  // x = sin(x) * w + x, one statement per step
inline constexpr int repeats = 20;                                             // in one measured round
inline constexpr float rate = 1e-3f;

/// A task that runs `step` often enough to be measured.
template <class F>
ops::task repeated(const char* name, F step) {
  return {name, [step] {
            for (int i = 0; i < repeats; ++i) step();
          }};
}

}  // namespace tiny
