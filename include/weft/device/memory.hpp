// SPDX-License-Identifier: MIT
// Device memory: a caching allocator, and buffers that return to it.
//
// Freed blocks are cached by size class (eighths of a power of two) and reused, so that a steady training
// step does not allocate from the device. Blocks of one class do not serve another, so the reserved memory
// can exceed the peak in use, unless there is a limit. Under AddressSanitizer free blocks, and the part of a
// block beyond the requested bytes, are poisoned.
//
// A freed block may be reused while queued work still reads it, as all work of a device is queued in one
// order (device/backend.hpp): what the next owner queues comes after it. A device with several queues would
// have to wait here.
#pragma once

#include <bit>
#include <limits>
#include <mutex>

#include <weft/base/poison.hpp>
#include <weft/base/recycled.hpp>
#include <weft/device/backend.hpp>

namespace weft {

/// Statistics of an allocator.
struct memory_figures {
  std::size_t in_use = 0;    // bytes held by buffers
  std::size_t peak = 0;      // maximum of in_use so far
  std::size_t reserved = 0;  // bytes allocated from the device, in use or cached
  std::size_t requests = 0;  // allocations from the device
};

/// Caching allocator of one device; thread-safe.
class caching_allocator {
 public:
  explicit caching_allocator(std::shared_ptr<backend> device) : device_(std::move(device)) {}
  caching_allocator(const caching_allocator&) = delete;
  caching_allocator& operator=(const caching_allocator&) = delete;
  ~caching_allocator() { release_cached(); }

  /// Returns a block of at least `bytes` bytes and sets `granted` to its size. Before it fails with the
  /// device's out_of_memory_error it frees all cached blocks.
  void* allocate(std::size_t bytes, std::size_t& granted);
  void deallocate(void* block, std::size_t granted) noexcept;

  /// Returns all cached blocks to the device.
  void release_cached() noexcept {
    const std::lock_guard lock(mutex_);
    release();
  }

  /// Limits caching: blocks are freed rather than cached while more than `bytes` are reserved.
  void limit(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    limit_ = bytes;
    if (figures_.reserved > limit_) release();
  }

  memory_figures figures() const {
    const std::lock_guard lock(mutex_);
    return figures_;
  }
  void reset_peak() {
    const std::lock_guard lock(mutex_);
    figures_.peak = figures_.in_use;
  }
  backend& device() const { return *device_; }

  /// The size to which a request is rounded up.
  static constexpr std::size_t size_class(std::size_t bytes) {
    if (bytes <= 512) return (std::max<std::size_t>(bytes, 1) + 63) / 64 * 64;
    const std::size_t step = std::bit_floor(bytes - 1) / 8;
    return (bytes + step - 1) / step * step;
  }
  /// Index of a size class in order of size; eight per power of two.
  static constexpr std::size_t class_number(std::size_t size_of_class) {
    const auto octave = static_cast<std::size_t>(std::bit_width((size_of_class - 1) >> 9));
    return 8 * octave + (size_of_class - 1) / class_step(octave) % 8;
  }
  static constexpr std::size_t class_bytes(std::size_t number) {
    const std::size_t octave = number / 8;
    return (octave ? 8 + number % 8 + 1 : number + 1) * class_step(octave);
  }

 private:
  static constexpr std::size_t classes = 8 * 56;
  static constexpr std::size_t class_step(std::size_t octave) {
    return std::size_t{64} << (octave ? octave - 1 : 0);
  }

  void* request(std::size_t granted);
  void release() noexcept;

  void give_back(void* block, std::size_t granted) noexcept {
    allow(block, granted);
    device_->deallocate(block, granted);
  }
  void allow(void* block, std::size_t bytes) const noexcept {
    if (detail::poisons && device_->host_accessible()) detail::unpoison(block, bytes);
  }
  void forbid(void* block, std::size_t bytes) const noexcept {
    if (detail::poisons && device_->host_accessible()) detail::poison(block, bytes);
  }

  std::shared_ptr<backend> device_;
  mutable std::mutex mutex_;
  recycled_vector<void*> free_[classes];  // by class
  std::size_t limit_ = std::numeric_limits<std::size_t>::max();
  memory_figures figures_;
};

/// Shared ownership of a block of device memory; keeps the allocator alive.
class buffer {
 public:
  buffer() = default;
  buffer(std::shared_ptr<caching_allocator> allocator, std::size_t bytes)
      : block_(make_recycled<block>(std::move(allocator), bytes)) {}

  void* data() const { return block_ ? static_cast<char*>(block_->memory) + offset_ : nullptr; }
  /// The part of the same block from byte `offset` on.
  buffer part(std::size_t offset) const {
    buffer b = *this;
    b.offset_ += offset;
    return b;
  }
  backend& device() const { return block_->allocator->device(); }
  explicit operator bool() const { return block_ != nullptr; }
  long use_count() const { return block_.use_count(); }

 private:
  struct block {
    std::shared_ptr<caching_allocator> allocator;
    std::size_t granted = 0;
    void* memory;
    block(std::shared_ptr<caching_allocator> a, std::size_t bytes)
        : allocator(std::move(a)), memory(allocator->allocate(bytes, granted)) {}
    block(const block&) = delete;
    block& operator=(const block&) = delete;
    ~block() { allocator->deallocate(memory, granted); }
  };
  std::shared_ptr<block> block_;
  std::size_t offset_ = 0;
};

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/device/impl/memory.ipp>
#endif
