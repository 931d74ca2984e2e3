// SPDX-License-Identifier: MIT
// Devices by name, for programs' --device options.
//
//   device where = open_device("auto");        // cuda, else the CPU
#pragma once

#include <string>

#include <weft/device/device.hpp>
#if WEFT_WITH_CUDA
#include <weft/gpu/cuda.hpp>
#endif
#if WEFT_WITH_OPENCL
#include <weft/gpu/opencl.hpp>
#endif

namespace weft {

/// Opens "cpu", "opencl", "cuda", or "auto", which is cuda if it works and otherwise cpu. `threads` is for
/// the CPU, 0 meaning one per core. Throws device_error if the device does not exist or is not part of this
/// build.
[[gnu::cold]] inline device open_device(const std::string& name, int threads = 0) {
  const bool any = name == "auto";
#if WEFT_WITH_CUDA
  if (name == "cuda" || any) {
    try {
      return device(std::make_shared<gpu::cuda_backend>());
    } catch (const device_error&) {
      if (!any) throw;
    }
  }
#endif
#if WEFT_WITH_OPENCL
  if (name == "opencl") return device(std::make_shared<gpu::opencl_backend>());
#endif
  if (name == "cpu" || any) return device(std::make_shared<cpu::cpu_backend>(threads));
  if (name == "cuda" || name == "opencl") throw device_error("weft: this program was built without " + name);
  throw device_error("weft: there is no device named " + name);
}

}  // namespace weft
