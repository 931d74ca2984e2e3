// SPDX-License-Identifier: MIT
// Sizes of caches, by which work is divided and stored.
#pragma once

#include <unistd.h>

#include <algorithm>

#include <weft/base/config.hpp>

namespace weft::cpu {

/// Bytes of a core's second-level cache.
inline index_t second_cache() {
#if defined(_SC_LEVEL2_CACHE_SIZE)
  static const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (bytes > 0) return std::min<index_t>(bytes, 4 << 20);
#endif
  return 1 << 20;
}

/// Bytes of the last-level cache, of which a process seldom has more than this to itself.
inline index_t last_cache() {
  constexpr index_t most = 64 << 20;
#if defined(_SC_LEVEL3_CACHE_SIZE)
  static const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (bytes > 0) return std::min<index_t>(bytes, most);
#endif
  return most / 2;
}

}  // namespace weft::cpu
