// SPDX-License-Identifier: MIT
// The interface of devices: memory, kernel launches, synchronisation.
//
// All code above this layer uses devices only through this interface. Calls are queued in order on one queue;
// `synchronize` waits for it. A device without a kernel for an op throws device_error naming the op.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <weft/base/error.hpp>
#include <weft/device/kernel.hpp>
#include <weft/device/native.hpp>
#include <weft/device/raw_memory.hpp>

namespace weft {

/// One copy between device memory and the host.
struct host_copy {
  void* to;
  const void* from;
  std::size_t bytes;
};

/// What a device may compute together with a matrix product: f(a b + bias + added), and sums of an operand
/// over the product's depth.
struct product_epilogue {
  const strided* bias = nullptr;   // as long as the result's rows; null: 0
  const strided* added = nullptr;  // in the result's shape; null: 0
  bool gelu = false;               // f is gelu_tanh, not the identity
  const strided* sums = nullptr;   // the sums of a's rows, or of b's columns if `of_right`; null: none
  bool of_right = false;
};

/// Work of a device that was recorded instead of executed; each call of replay executes it.
class recorded_work {
 public:
  virtual ~recorded_work() = default;
  /// Queues the work. Kernels that were recorded with random key i read keys[i].
  virtual void replay(std::span<const std::uint64_t> keys) = 0;
};

/// The number of elements that GPUs compute at once: backend::elements_at_once.
inline constexpr index_t gpu_elements_at_once = index_t{1} << 27;

/// A device. Functions throw device_error on failure.
class backend {
 public:
  virtual ~backend() = default;

  virtual const char* name() const = 0;
  /// Names of the device and its driver, for logs.
  virtual std::string description() const { return name(); }

  /// False if calls only count memory (device/counting.hpp).
  virtual bool computes() const { return true; }

  /// Whether kernels can compute in f64. Where not, ops on f64 throw device_error that names the op; copies
  /// of whole elements work.
  virtual bool has_f64() const { return true; }

  /// Allocates device memory, aligned to 64 bytes. Throws out_of_memory_error if there is not enough.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void deallocate(void* memory, std::size_t bytes) noexcept = 0;
  virtual device_room room() const { return {}; }
  /// Addresses to which the device's memory can be mapped; null if it has none.
  virtual mapped_memory* mapped() { return nullptr; }
  /// Whether the host may read and write the device's memory directly.
  virtual bool host_accessible() const = 0;
  /// Whether the device's memory can hold messages between ranks; otherwise they are kept in host memory.
  virtual bool holds_messages() const { return host_accessible(); }
  virtual void upload(void* to, const void* from, std::size_t bytes) = 0;
  /// Waits as `synchronize` does, and copies.
  virtual void download(void* to, const void* from, std::size_t bytes) = 0;
  /// Several copies to the host; a device that has to wait does so once.
  virtual void download_together(std::span<const host_copy> all) {
    for (const host_copy& c : all) download(c.to, c.from, c.bytes);
  }

  /// Bytes of device memory, aligned to 64, that `launch(call)` needs at `call.scratch`. They come from the
  /// program's arena, so that the allocator's figures, limit and retry include them.
  virtual std::size_t scratch_bytes(const kernel_call&) const { return 0; }
  /// The same for a native op, at `operands.scratch`. Pointers are not set yet.
  virtual std::size_t native_scratch_bytes(const native_code&, const native_operands&) const { return 0; }
  /// Announces which fused kernels a program will launch, and which of them together (kernel_call::joins),
  /// before its first run with these extents. Devices that compile kernels can compile the unknown ones in
  /// parallel. Pointers and numbers are not set yet.
  virtual void prepare(std::span<const kernel_call* const>) {}
  /// Launches a fused kernel.
  virtual void launch(const kernel_call& call) = 0;
  /// Launches kernels, in any order; none of them reads or writes what another one writes.
  virtual void launch_together(std::span<const kernel_call* const> calls) {
    for (const kernel_call* call : calls) launch(*call);
  }
  /// Whether programs collect kernels and copies that can be launched together, because a launch is
  /// expensive.
  virtual bool launches_together() const { return false; }
  /// c = a b over the last two dims, for each index of the others, or c += a b if c.adds. `code` holds the
  /// product compiled for this CPU.
  virtual void multiply(const native_code& code, const strided& a, const strided& b, const strided& c) = 0;
  /// The same with an epilogue; returns false, with nothing done, if the device needs separate steps for it.
  virtual bool multiply_with(const strided&, const strided&, const strided&, const product_epilogue&) {
    return false;
  }
  /// Whether `multiply` accepts operands with strided::merged; otherwise programs copy them first.
  virtual bool multiplies_merged() const { return false; }
  /// How many elements ops that may choose, such as `linear_cross_entropy`, should compute at once: few
  /// compared with the device's memory, but enough for all its units.
  virtual index_t elements_at_once() const { return index_t{1} << 24; }
  /// Whether f32 products may be computed on tensor cores that round operands to TF32 (10 bits), as
  /// torch.backends.cuda.matmul.allow_tf32. No effect on devices without such cores.
  virtual void allow_tf32(bool) {}
  /// Copies elements of `from` to the same indices of `to`, which has the same extents.
  virtual void copy(const strided& from, const strided& to) = 0;
  /// The same for several pairs of tensors of one type that do not overlap each other.
  virtual void copy_together(std::span<const strided> from, std::span<const strided> to) {
    for (std::size_t i = 0; i < from.size(); ++i) copy(from[i], to[i]);
  }
  virtual void fill_zero(void* memory, std::size_t bytes) = 0;
  /// Runs a native op. `code` is its table of functions.
  virtual void call_native(const char* op, const native_code& code, const native_operands& operands) = 0;

  virtual void synchronize() = 0;

  /// Whether the device can record work.
  virtual bool records() const { return false; }
  /// From now on, until end_recording or abandon_recording, the calls of this thread are recorded. Keys of
  /// random numbers are then numbers of keys. Uploaded elements are the same in every execution. Calls that
  /// would wait for the device or need memory from it throw usage_error.
  virtual void begin_recording() {
    refuse<device_error>({"weft: ", name(), ": this device cannot record work"});
  }
  virtual std::unique_ptr<recorded_work> end_recording() { return nullptr; }
  virtual void abandon_recording() noexcept {}
  /// Whether this thread is recording.
  virtual bool is_recording() const { return false; }
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
