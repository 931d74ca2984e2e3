// SPDX-License-Identifier: MIT
// What a device must be able to do: memory, launches, an end to wait for. One page.
//
// Everything above knows a device by this interface alone. Calls are queued in order on one queue;
// `synchronize` waits for it. A device that lacks code for an op refuses it by name.
#pragma once

#include <cstddef>
#include <string>

#include <weft/base/error.hpp>
#include <weft/device/kernel.hpp>
#include <weft/device/native.hpp>

namespace weft {

class backend {
 public:
  virtual ~backend() = default;

  virtual const char* name() const = 0;
  /// The device and its driver, as programs log it.
  virtual std::string description() const { return name(); }

  /// False where calls only count memory (device/counting.hpp).
  virtual bool computes() const { return true; }

  /// Memory of the device, aligned to 64 bytes. Throws out_of_memory_error if there is not enough.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void deallocate(void* memory, std::size_t bytes) noexcept = 0;
  /// Whether the host may read and write that memory directly.
  virtual bool host_accessible() const = 0;
  /// Whether messages between ranks may lie in that memory; otherwise they lie in memory of the host.
  virtual bool holds_messages() const { return host_accessible(); }
  virtual void upload(void* to, const void* from, std::size_t bytes) = 0;
  virtual void download(void* to, const void* from, std::size_t bytes) = 0;

  /// A fused kernel.
  virtual void launch(const kernel_call& call) = 0;
  /// c = a b over the last two dims, for each index of the others; c += a b where c adds. `code` holds
  /// the product compiled for this CPU.
  virtual void multiply(const native_code& code, const strided& a, const strided& b, const strided& c) = 0;
  /// Elements of `from` to the same indices of `to`, which has the same extents.
  virtual void copy(const strided& from, const strided& to) = 0;
  virtual void fill_zero(void* memory, std::size_t bytes) = 0;
  /// An op with code of its own. `native` is the op's table of functions.
  virtual void call_native(const char* op, const native_code& code, const native_operands& operands) = 0;

  virtual void synchronize() = 0;
};

/// Copies `count` elements that lie one after the other, within the device.
inline void copy_elements(backend& device, dtype type, void* to, const void* from, index_t count) {
  if (count == 0) return;
  const auto line = [&](void* memory) {
    strided s;
    s.pointer = memory;
    s.type = type;
    s.extents = {1, {count}};
    s.stride[0] = 1;
    return s;
  };
  device.copy(line(const_cast<void*>(from)), line(to));
}

}  // namespace weft
