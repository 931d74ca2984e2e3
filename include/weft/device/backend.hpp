// SPDX-License-Identifier: MIT
// The interface of devices: memory, kernel launches, synchronisation.
//
// Everything above uses devices through this interface alone. Calls are queued in order on one queue;
// `synchronize` waits for it. A device without a kernel for an op throws device_error naming the op.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include <weft/base/error.hpp>
#include <weft/device/kernel.hpp>
#include <weft/device/native.hpp>

namespace weft {

/// A device. Functions throw device_error on failure.
class backend {
 public:
  virtual ~backend() = default;

  virtual const char* name() const = 0;
  /// Names of the device and its driver, for logs.
  virtual std::string description() const { return name(); }

  /// False if calls only count memory (device/counting.hpp).
  virtual bool computes() const { return true; }

  /// Allocates device memory, aligned to 64 bytes. Throws out_of_memory_error if there is not enough.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void deallocate(void* memory, std::size_t bytes) noexcept = 0;
  /// Whether the host may read and write that memory directly.
  virtual bool host_accessible() const = 0;
  /// Whether messages between ranks can be kept in that memory; otherwise they are kept in memory of the
  /// host.
  virtual bool holds_messages() const { return host_accessible(); }
  virtual void upload(void* to, const void* from, std::size_t bytes) = 0;
  /// Waits like `synchronize`, and copies.
  virtual void download(void* to, const void* from, std::size_t bytes) = 0;

  /// Bytes of device memory, aligned to 64, that `launch(call)` needs at `call.scratch`. They are taken from
  /// the program's arena, so that the allocator's figures, limit and retry include them.
  virtual std::size_t scratch_bytes(const kernel_call&) const { return 0; }
  /// The same of a native op, at `operands.scratch`. Pointers are not set yet.
  virtual std::size_t native_scratch_bytes(const native_code&, const native_operands&) const { return 0; }
  /// Says which fused kernels a program will launch, and which of them together (kernel_call::joins), before
  /// its first run with these extents. Devices that compile kernels can compile those that they do not know
  /// yet side by side. Pointers and numbers are not set yet.
  virtual void prepare(std::span<const kernel_call* const>) {}
  /// Launches a fused kernel.
  virtual void launch(const kernel_call& call) = 0;
  /// Launches kernels of which none reads or writes what another one writes, in any order.
  virtual void launch_together(std::span<const kernel_call* const> calls) {
    for (const kernel_call* call : calls) launch(*call);
  }
  /// Whether programs collect kernels and copies that can be launched together, because a launch is
  /// expensive.
  virtual bool launches_together() const { return false; }
  /// c = a b over the last two dims, for each index of the others, or c += a b if c.adds. `code` holds the
  /// product compiled for this CPU.
  virtual void multiply(const native_code& code, const strided& a, const strided& b, const strided& c) = 0;
  /// Copies elements of `from` to the same indices of `to`, which has the same extents.
  virtual void copy(const strided& from, const strided& to) = 0;
  /// The same for several pairs of tensors of one type, none of which overlaps another one.
  virtual void copy_together(std::span<const strided> from, std::span<const strided> to) {
    for (std::size_t i = 0; i < from.size(); ++i) copy(from[i], to[i]);
  }
  virtual void fill_zero(void* memory, std::size_t bytes) = 0;
  /// Runs a native op. `code` is its table of functions.
  virtual void call_native(const char* op, const native_code& code, const native_operands& operands) = 0;

  virtual void synchronize() = 0;
};

/// Copies `count` contiguous elements within the device.
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
