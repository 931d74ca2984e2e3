// SPDX-License-Identifier: MIT
// Allocation of small short-lived objects: handles, lists of operands, entries of tapes. Each thread caches
// freed blocks by size and reuses them, so that a steady training step does not allocate from the heap.
//
//   recycled_vector<void*> pointers;
//   std::shared_ptr<tensor_state> t = make_recycled<tensor_state>(device, extents, type);
#pragma once

#include <bit>
#include <cstddef>
#include <memory>
#include <new>
#include <vector>

#include <weft/base/poison.hpp>

namespace weft {

namespace detail {

/// Free blocks of one thread. Sizes are powers of two up to 1 MiB; of each size a thread keeps at most 1 MiB,
/// or four blocks. Under AddressSanitizer nothing is cached, so that it detects every use after free.
class recycled_blocks {
 public:
  static constexpr bool recycles = !poisons;

  static void* take(std::size_t bytes);
  static void give(void* memory, std::size_t bytes) noexcept;

 private:
  struct block {
    block* next;
  };
  static constexpr std::size_t smallest = 32;
  static constexpr int sizes = 16;
  static constexpr int most_of(int size) {
    const int in_a_mebibyte = static_cast<int>((std::size_t{1} << 20) / (smallest << size));
    return !recycles ? 0 : in_a_mebibyte < 4 ? 4 : in_a_mebibyte;
  }

  /// Trivially destructible, so that static objects can still free memory at the end of the program.
  struct lists {
    block* first[sizes];
    int count[sizes];
  };
  /// Runs at thread exit and leaves lists that are marked full, so that later frees go to the heap.
  struct cleaner {
    lists* of;
    ~cleaner();
  };

  static int size_of(std::size_t bytes) {
    return bytes <= smallest ? 0 : static_cast<int>(std::bit_width((bytes - 1) / smallest));
  }
  static lists& mine();
};

}  // namespace detail

/// A standard allocator that uses the block cache of the thread.
template <class T>
struct recycling_allocator {
  using value_type = T;
  recycling_allocator() = default;
  template <class U>
  recycling_allocator(const recycling_allocator<U>&) noexcept {}

  T* allocate(std::size_t n) {
    static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__,
                  "weft: recycled memory is aligned as operator new does");
    return static_cast<T*>(detail::recycled_blocks::take(n * sizeof(T)));
  }
  void deallocate(T* p, std::size_t n) noexcept { detail::recycled_blocks::give(p, n * sizeof(T)); }
  friend bool operator==(const recycling_allocator&, const recycling_allocator&) { return true; }
};

/// std::vector with memory from the block cache of the thread.
template <class T>
using recycled_vector = std::vector<T, recycling_allocator<T>>;

/// std::make_shared with memory from the block cache of the thread.
template <class T, class... Arguments>
std::shared_ptr<T> make_recycled(Arguments&&... arguments) {
  return std::allocate_shared<T>(recycling_allocator<T>{}, std::forward<Arguments>(arguments)...);
}

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/base/impl/recycled.ipp>
#endif
