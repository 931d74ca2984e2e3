// SPDX-License-Identifier: MIT
// Observation of the steps of programs: the interface of profilers (train/profiler.hpp).
#pragma once

#include <atomic>
#include <span>

#include <weft/device/backend.hpp>

namespace weft::runtime {

/// Receives every step of a program and the end of each, on the thread that executes it. Thread-safe.
class step_observer {
 public:
  virtual ~step_observer() = default;
  /// Fused kernels that are launched together.
  virtual void begin_launch(std::span<const kernel_call* const> calls) = 0;
  /// A product of t[0] and t[1] with the result t[2].
  virtual void begin_product(std::span<const strided> t) = 0;
  /// A native op or a copy.
  virtual void begin_native(const char* op, const native_code& code, const attributes& at,
                            std::span<const strided> in, std::span<const strided> out) = 0;
  /// The step has been submitted to `device`; null after an error.
  virtual void end(backend* device) = 0;
};

namespace detail {
inline std::atomic<step_observer*> steps_go_to{nullptr};
}

}  // namespace weft::runtime
