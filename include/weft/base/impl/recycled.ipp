// SPDX-License-Identifier: MIT
// Definitions of <weft/base/recycled.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/base/recycled.hpp>

namespace weft {
namespace detail {

[[gnu::noinline]] WEFT_DEFINE void* recycled_blocks::take(std::size_t bytes) {
  const int size = size_of(bytes);
  if (size < sizes) {
    lists& own = mine();
    if (block* b = own.first[size]) {
      own.first[size] = b->next;
      --own.count[size];
      return b;
    }
    if (recycles) bytes = smallest << size;
  }
  return ::operator new(bytes);
}

[[gnu::noinline]] WEFT_DEFINE void recycled_blocks::give(void* memory, std::size_t bytes) noexcept {
  const int size = size_of(bytes);
  if (size < sizes) {
    lists& own = mine();
    if (own.count[size] < most_of(size)) {
      own.first[size] = new (memory) block{own.first[size]};
      ++own.count[size];
      return;
    }
  }
  ::operator delete(memory);
}

WEFT_DEFINE recycled_blocks::cleaner::~cleaner() {
  for (int i = 0; i < sizes; ++i) {
    while (block* b = of->first[i]) {
      of->first[i] = b->next;
      ::operator delete(b);
    }
    of->count[i] = most_of(i);
  }
}

WEFT_DEFINE recycled_blocks::lists& recycled_blocks::mine() {
  static constinit thread_local lists own{};
  static thread_local const cleaner at_end{&own};
  return own;
}

/// Allocates one control block of std::shared_ptr, and an object behind it.
template <class T>
struct allocator_beside {
  using value_type = T;
  std::size_t bytes;  // of the object
  void** object;      // where `allocate` stores the object's address

  allocator_beside(std::size_t b, void** o) : bytes(b), object(o) {}
  template <class U>
  allocator_beside(const allocator_beside<U>& other) noexcept : bytes(other.bytes), object(other.object) {}

  static std::size_t before_object(std::size_t n) {
    constexpr std::size_t alignment = __STDCPP_DEFAULT_NEW_ALIGNMENT__;
    return (n * sizeof(T) + alignment - 1) / alignment * alignment;
  }
  T* allocate(std::size_t n) {
    void* const block = recycled_blocks::take(before_object(n) + bytes);
    *object = static_cast<char*>(block) + before_object(n);
    return static_cast<T*>(block);
  }
  void deallocate(T* block, std::size_t n) noexcept {
    recycled_blocks::give(block, before_object(n) + bytes);
  }
  friend bool operator==(const allocator_beside& a, const allocator_beside& b) { return a.bytes == b.bytes; }
};

// Not inlined, so that the code for std::allocate_shared is there only once.
[[gnu::noinline]] WEFT_DEFINE std::shared_ptr<recycled_object> recycled_memory(std::size_t bytes) {
  void* object = nullptr;
  auto owner = std::allocate_shared<recycled_object>(allocator_beside<recycled_object>(bytes, &object));
  owner->object = object;
  return owner;
}

}  // namespace detail
}  // namespace weft
