// SPDX-License-Identifier: MIT
// What the allocator knows about the memory of a device, apart from its allocation: how much there is, pages
// that are mapped to reserved addresses, and other queues that use a block.
#pragma once

#include <cstddef>

namespace weft {

/// Memory of a device in bytes; 0 if not known.
struct device_room {
  std::size_t total = 0;
  std::size_t free = 0;  // for this process and all others; on a CPU, without memory held by file caches
};

/// Addresses that are reserved first and to which memory is mapped later, page by page.
class mapped_memory {
 public:
  virtual ~mapped_memory() = default;
  /// The unit of the sizes and addresses below, which are multiples of it.
  virtual std::size_t page_bytes() const = 0;
  /// The most that can be mapped: the memory of the device.
  virtual std::size_t capacity() const = 0;
  virtual void* reserve(std::size_t bytes) = 0;
  /// Nothing is mapped there any more.
  virtual void unreserve(void* at, std::size_t bytes) noexcept = 0;
  /// Maps memory to all of these pages, or throws out_of_memory_error and maps none.
  virtual void map(void* at, std::size_t bytes) = 0;
  /// Waits for the work queued on the device, which may use the pages.
  virtual void unmap(void* at, std::size_t bytes) noexcept = 0;
};

/// The use of a block by a queue other than that of its device, such as a stream of messages or copies. The
/// allocator calls these functions while it holds its lock.
class queue_use {
 public:
  virtual ~queue_use() = default;
  /// The block was freed: what is queued by now is all that uses it.
  virtual void close() noexcept = 0;
  virtual bool is_over() = 0;
  /// The device has no more memory: waits until the use is over, if it will end without further calls.
  virtual void wait() = 0;
};

}  // namespace weft
