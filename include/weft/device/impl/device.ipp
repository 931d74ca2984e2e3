// SPDX-License-Identifier: MIT
// Definitions of <weft/device/device.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/device/device.hpp>

namespace weft {

WEFT_DEFINE buffer device::allocate(std::size_t bytes, const char* what) const {
  return buffer(allocator_, bytes, what);
}

WEFT_DEFINE std::string memory_summary(const device& where) { return where.memory().summary(); }

// Not inlined, so that in one program units with and without weft::compiled share its variable.
[[gnu::noinline]] WEFT_DEFINE const device& default_device() {
  static const device* cpu = new device(make_recycled<cpu::cpu_backend>());
  return *cpu;
}

}  // namespace weft
