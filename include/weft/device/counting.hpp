// SPDX-License-Identifier: MIT
// A device that allocates and computes nothing: a program played on it shows what memory it would
// take anywhere, to the byte.
//
//   device nowhere(std::make_shared<counting_backend>());
//   ... build the model and play a step there ...
//   nowhere.memory().figures().peak
#pragma once

#include <cstring>

#include <weft/device/backend.hpp>

namespace weft {

class counting_backend : public backend {
 public:
  const char* name() const override { return "nowhere"; }
  bool computes() const override { return false; }
  bool host_accessible() const override { return false; }

  void* allocate(std::size_t bytes) override {
    const std::uintptr_t address = next_;
    next_ += (bytes + 63) / 64 * 64;
    return reinterpret_cast<void*>(address);
  }
  void deallocate(void*, std::size_t) noexcept override {}
  void upload(void*, const void*, std::size_t) override {}
  void download(void* to, const void*, std::size_t bytes) override {
    if (bytes) std::memset(to, 0, bytes);
  }

  void launch(const kernel_call&) override {}
  void multiply(const native_code&, const strided&, const strided&, const strided&) override {}
  void copy(const strided&, const strided&) override {}
  void fill_zero(void*, std::size_t) override {}
  void call_native(const char*, const native_code&, const native_operands&) override {}
  void synchronize() override {}

 private:
  std::uintptr_t next_ = 4096;
};

}  // namespace weft
