// SPDX-License-Identifier: MIT
// Host memory through which small copies from and to a device go, so that the host need not wait for copies
// to the device, and one wait completes several copies from it.
//
// Parts are given out from the beginning on. After a wait, when nothing is in flight, all of the memory is
// free again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

namespace weft::gpu {

/// Parts of a block of memory. Functions may be called by several threads; the work for a part must be queued
/// before `lock` is released, so that a wait which begins later includes it.
class staging_memory {
 public:
  static constexpr std::size_t bytes = std::size_t{4} << 20;

  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }

  /// `n` bytes, aligned to 64; null if there is not enough room. `allocate(bytes)` is called once. Must be
  /// called with the lock held.
  template <class Allocate>
  char* part(std::size_t n, const Allocate& allocate) {
    n = (n + 63) / 64 * 64;
    if (n > bytes - used_) return nullptr;
    if (!memory_) memory_ = static_cast<char*>(allocate(bytes));
    ++parts_;
    return memory_ + std::exchange(used_, used_ + n);
  }

  /// During its lifetime a thread waits for everything queued, and its parts stay its own.
  class waiting {
   public:
    explicit waiting(staging_memory& of) : of_(of) {
      const auto own = of_.lock();
      ++of_.waiting_;
    }
    waiting(const waiting&) = delete;
    waiting& operator=(const waiting&) = delete;
    ~waiting() {
      const auto own = of_.lock();
      if (--of_.waiting_ == 0 && parts_ == of_.parts_) of_.used_ = 0;
    }
    /// Must be called before the wait, with the lock held, after the thread's own parts were given out.
    void begin() { parts_ = of_.parts_; }

   private:
    staging_memory& of_;
    std::uint64_t parts_ = ~std::uint64_t{0};
  };

  /// The memory, from which no more parts are given out.
  void* released() { return std::exchange(memory_, nullptr); }

 private:
  std::mutex mutex_;
  char* memory_ = nullptr;
  std::size_t used_ = 0;
  std::uint64_t parts_ = 0;  // number given out so far
  int waiting_ = 0;
};

}  // namespace weft::gpu
