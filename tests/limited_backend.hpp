// SPDX-License-Identifier: MIT
// A device for tests of memory requirements.
#pragma once

#include <atomic>
#include <string>

#include <weft/device/cpu/backend.hpp>

namespace weft::test {

/// The CPU with a limited number of bytes.
class limited_backend : public cpu::cpu_backend {
 public:
  explicit limited_backend(std::size_t bytes) : cpu_backend(1), most_(bytes), left_(bytes) {}
  device_room room() const override { return {most_, left_}; }
  void* allocate(std::size_t bytes) override {
    if (bytes > left_)
      throw out_of_memory_error("weft: the limited device has " + std::to_string(left_) +
                                " bytes left, not " + std::to_string(bytes));
    left_ -= bytes;
    return cpu_backend::allocate(bytes);
  }
  void deallocate(void* p, std::size_t bytes) noexcept override {
    left_ += bytes;
    cpu_backend::deallocate(p, bytes);
  }

 private:
  const std::size_t most_;
  std::atomic<std::size_t> left_;
};

}  // namespace weft::test
