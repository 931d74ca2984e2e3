// SPDX-License-Identifier: MIT
// Tensors in the memory of a tested device, for tests that call the device directly.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include <weft/gpu/open.hpp>

#include "../skip.hpp"

namespace weft::test {

/// The device that WEFT_TEST_DEVICE names, by default opencl; null if the machine has no such device.
inline const device* tested_device() {
  static const device* found = []() -> const device* {
    const char* name = std::getenv("WEFT_TEST_DEVICE");
    try {
      return new device(open_device(name ? name : "opencl"));
    } catch (const device_error& e) {
      if (name) throw;
      skip("opencl", e.what());
      return nullptr;
    }
  }();
  return found;
}

/// Device memory with these elements.
template <class T>
buffer sent(const device& d, const std::vector<T>& elements) {
  buffer b = d.allocate(std::max<std::size_t>(elements.size() * sizeof(T), 1));
  (*d).upload(b.data(), elements.data(), elements.size() * sizeof(T));
  return b;
}

/// The row-major elements at the beginning of the memory.
inline strided view(const buffer& b, dtype type, shape extents) {
  strided s;
  s.pointer = b.data();
  s.type = type;
  s.extents = extents;
  set_contiguous(s);
  return s;
}

}  // namespace weft::test
