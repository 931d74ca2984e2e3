// SPDX-License-Identifier: MIT
// NVTX: ranges (base/record_function.hpp) in the timeline of Nsight Systems. Enabled as soon as a CUDA device
// is open, if no other profiler is set.
#pragma once

#include <weft/base/record_function.hpp>

namespace weft::gpu {

/// Sends ranges to NVTX, unless they go elsewhere. Does nothing without the header nvtx3/nvToolsExt.h.
[[gnu::cold]] void send_ranges_to_nvtx();

}  // namespace weft::gpu

#ifndef WEFT_COMPILED
#include <weft/gpu/impl/nvtx.ipp>
#endif
