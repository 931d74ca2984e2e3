// SPDX-License-Identifier: MIT
// Annotations for AddressSanitizer, from which allocators that keep freed blocks, or return larger ones than
// requested, would otherwise hide errors. No-ops without it.
//
//   poison(block, size);                // from now on an access is an error
//   unpoison(block, bytes);
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define WEFT_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WEFT_ADDRESS_SANITIZER 1
#endif
#endif
#if WEFT_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace weft::detail {

#if WEFT_ADDRESS_SANITIZER
inline constexpr bool poisons = true;
inline void poison(const void* memory, std::size_t bytes) noexcept {
  __asan_poison_memory_region(memory, bytes);
}
inline void unpoison(const void* memory, std::size_t bytes) noexcept {
  __asan_unpoison_memory_region(memory, bytes);
}
#else
inline constexpr bool poisons = false;
inline void poison(const void*, std::size_t) noexcept {}
inline void unpoison(const void*, std::size_t) noexcept {}
#endif

}  // namespace weft::detail
