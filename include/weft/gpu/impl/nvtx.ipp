// SPDX-License-Identifier: MIT
// Definitions of <weft/gpu/nvtx.hpp>.
#pragma once

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#endif

#include <weft/base/config.hpp>
#include <weft/gpu/nvtx.hpp>

namespace weft {
namespace gpu {

#if __has_include(<nvtx3/nvToolsExt.h>)
namespace detail {
class nvtx_sink final : public range_sink {
 public:
  void begin(const char* name, std::int64_t) noexcept override { nvtxRangePushA(name); }
  void end() noexcept override { nvtxRangePop(); }
};
}  // namespace detail

WEFT_DEFINE void send_ranges_to_nvtx() {
  static detail::nvtx_sink sink;
  range_sink* none = nullptr;
  weft::detail::ranges_go_to.compare_exchange_strong(none, &sink);
}
#else
WEFT_DEFINE void send_ranges_to_nvtx() {}
#endif

}  // namespace gpu
}  // namespace weft
