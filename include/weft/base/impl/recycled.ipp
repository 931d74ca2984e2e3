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

}  // namespace detail
}  // namespace weft
