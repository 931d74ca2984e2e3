// SPDX-License-Identifier: MIT
// Device memory: a caching allocator, and buffers that return to it.
//
// Freed blocks are cached and reused, so that a steady training step does not allocate from the device. Small
// blocks serve only requests of their size class; larger ones are split, and joined again (block_pool.hpp).
// Under AddressSanitizer, free blocks and the part of a block beyond the requested bytes are poisoned.
//
// A freed block may be reused while queued work still reads it, because all work of a device is queued in one
// order (device/backend.hpp), and what the next owner queues comes after it. Uses by other queues are noted
// with `record_use`; the block is not reused before they are over.
#pragma once

#include <algorithm>
#include <bit>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <weft/base/poison.hpp>
#include <weft/base/recycled.hpp>
#include <weft/device/backend.hpp>
#include <weft/device/memory_figures.hpp>

namespace weft {

struct memory_block;

/// Caching allocator of one device; thread-safe.
class caching_allocator {
 public:
  /// Throws usage_error if WEFT_ALLOC_CONF is invalid.
  explicit caching_allocator(std::shared_ptr<backend> device)
      : caching_allocator(std::move(device), memory_options::from_environment()) {}
  caching_allocator(std::shared_ptr<backend> device, const memory_options& options);
  caching_allocator(const caching_allocator&) = delete;
  caching_allocator& operator=(const caching_allocator&) = delete;
  ~caching_allocator();

  struct allocation {
    memory_block* block;
    void* memory;
  };
  /// A block of at least `bytes` bytes, which will hold `what`. Throws out_of_memory_error, which lists the
  /// largest blocks in use, if the device has no memory left even after all cached memory has been returned
  /// to it.
  allocation allocate(std::size_t bytes, const char* what = "");
  void deallocate(memory_block& block) noexcept;

  /// Sets what a block holds, for lists of memory use; with the name of another block's contents, if it has
  /// one.
  void describe(memory_block& block, const char* what, const memory_block* named = nullptr);
  void set_name(memory_block& block, std::shared_ptr<const std::string> name);
  std::pair<const char*, std::shared_ptr<const std::string>> description_of(const memory_block& block) const;

  /// Notes that another queue uses the block that holds this address: when the block is freed, it is not
  /// reused before the use is over. A use belongs to one block, for which it may be noted again. Returns
  /// false if the address is in no block of this allocator.
  bool record_use(const void* address, std::shared_ptr<queue_use> use);

  /// Returns all cached memory to the device.
  void empty_cache();

  /// Limits caching: while more than `bytes` are reserved, the blocks that were freed first are returned to
  /// the device.
  void limit(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    limit_ = bytes;
    trim(limit_);
  }

  memory_figures figures() const;
  void reset_peak() {
    const std::lock_guard lock(mutex_);
    figures_.peak = figures_.in_use;
    figures_.peak_reserved = figures_.reserved;
  }
  backend& device() const { return *device_; }
  const memory_options& options() const { return options_; }

  /// Figures, options and the largest blocks in use, as a human-readable table.
  [[gnu::cold]] std::string summary() const;

  /// The size to which a request is rounded up.
  static constexpr std::size_t size_class(std::size_t bytes) {
    if (bytes <= 512) return (std::max<std::size_t>(bytes, 1) + 63) / 64 * 64;
    const std::size_t step = std::bit_floor(bytes - 1) / 8;
    return (bytes + step - 1) / step * step;
  }

  /// Blocks for one user, such as recorded work that keeps using them. While a thread has the pool open, it
  /// allocates from the pool, or else from the cached blocks, and frees to the pool. Nobody else gets these
  /// blocks before the pool ends or, if it is not sealed, before the device runs out of memory.
  class private_pool {
   public:
    explicit private_pool(caching_allocator& of);
    private_pool(const private_pool&) = delete;
    private_pool& operator=(const private_pool&) = delete;
    ~private_pool();
    /// Only one pool of an allocator can be open at a time: another thread waits.
    void open();
    void close() noexcept;
    /// From now on the pool keeps its free blocks even if others need memory. Returns false, with nothing
    /// sealed, if it has lost blocks since it was created or last asked.
    bool seal();

   private:
    friend caching_allocator;
    /// Makes room to free all blocks and one more.
    void make_room() {
      const std::size_t most = of_.figures_.blocks + free_.size() + 1;
      if (most > free_.capacity()) free_.reserve(2 * most);
    }
    memory_block* take(std::size_t granted);
    /// Gives all free blocks to the allocator.
    void yield() noexcept;

    caching_allocator& of_;
    std::vector<memory_block*> free_;
    bool sealed_ = false, yielded_ = false;
  };

 private:
  /// The pool that this thread has open, or null.
  private_pool* own_pool() const { return open_ && user_ == std::this_thread::get_id() ? open_ : nullptr; }
  /// A block for which the device is asked for memory.
  [[gnu::cold]] memory_block& obtain(std::size_t granted, const char* what);
  memory_block* request(std::size_t granted);
  /// Maps pages so that this many bytes are free; returns false if the range has no room.
  bool extend(std::size_t granted);
  /// The range of addresses, reserved at the first call; null if there is none.
  mapped_memory* range();
  [[noreturn, gnu::cold]] void refuse(const out_of_memory_error& e, std::size_t granted, const char* what);

  static bool is_over(queue_use& use, bool waits) noexcept;
  /// Frees awaited blocks that are no longer used; with `waits`, all of them.
  void await_uses(bool waits) noexcept;
  /// Returns the cached memory that was freed first, until at most this many bytes are reserved.
  void trim(std::size_t most) noexcept;
  void return_memory(memory_block& block) noexcept;
  /// Bytes above which memory is returned before more is reserved.
  std::size_t threshold() const;
  void note_reserved(std::size_t bytes) {
    figures_.reserved += bytes;
    figures_.peak_reserved = std::max(figures_.peak_reserved, figures_.reserved);
    ++figures_.requests;
  }
  memory_figures current_figures() const;

  void allow(const void* block, std::size_t bytes) const noexcept {
    if (detail::poisons && device_->host_accessible()) detail::unpoison(block, bytes);
  }
  void forbid(const void* block, std::size_t bytes) const noexcept {
    if (detail::poisons && device_->host_accessible()) detail::poison(block, bytes);
  }

  std::shared_ptr<backend> device_;
  const memory_options options_;
  mutable std::mutex mutex_;
  const std::unique_ptr<block_pool> pool_;
  std::vector<memory_block*> awaited_;
  std::size_t limit_ = memory_options::unlimited;
  bool tried_range_ = false;
  char* range_ = nullptr;
  std::size_t range_bytes_ = 0;
  std::vector<private_pool*> private_pools_;
  std::mutex opening_;  // held while a private pool is open
  private_pool* open_ = nullptr;
  std::thread::id user_;  // the thread that has opened it
  memory_figures figures_;
};

/// Shared ownership of a block of device memory; keeps the allocator alive.
class buffer {
 public:
  buffer() = default;
  buffer(std::shared_ptr<caching_allocator> allocator, std::size_t bytes, const char* what = "")
      : block_(make_recycled<block>(std::move(allocator), bytes, what)) {}

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

  /// For lists of memory use: sets the kind of value that is kept here, a string that is never freed, and the
  /// name of the tensor.
  void describe(const char* what) const {
    if (block_) block_->allocator->describe(*block_->of, what);
  }
  /// The same, with the name of the contents of `like`.
  void describe(const char* what, const buffer& like) const {
    if (!block_) return;
    const bool together = like.block_ && like.block_->allocator == block_->allocator;
    block_->allocator->describe(*block_->of, what, together ? like.block_->of : nullptr);
  }
  /// The same description as that of `other`, which may be on another device.
  void describe_as(const buffer& other) const {
    if (!block_ || !other.block_) return;
    const auto [what, name] = other.block_->allocator->description_of(*other.block_->of);
    block_->allocator->describe(*block_->of, what);
    block_->allocator->set_name(*block_->of, name);
  }
  /// The kind and the name of the tensor in it: "parameter wte.weight"; empty if it has no name.
  [[gnu::cold]] std::string named_contents() const {
    if (!block_) return {};
    const auto [what, name] = block_->allocator->description_of(*block_->of);
    return name ? std::string(what) + " " + *name : std::string();
  }
  void set_name(const std::string& name) const {
    if (block_) block_->allocator->set_name(*block_->of, std::make_shared<const std::string>(name));
  }

 private:
  struct block {
    std::shared_ptr<caching_allocator> allocator;
    memory_block* of;
    void* memory;
    block(std::shared_ptr<caching_allocator> a, std::size_t bytes, const char* what)
        : allocator(std::move(a)) {
      const auto found = allocator->allocate(bytes, what);
      of = found.block;
      memory = found.memory;
    }
    block(const block&) = delete;
    block& operator=(const block&) = delete;
    ~block() { allocator->deallocate(*of); }
  };
  std::shared_ptr<block> block_;
  std::size_t offset_ = 0;
};

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/device/impl/memory.ipp>
#endif
