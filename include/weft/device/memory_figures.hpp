// SPDX-License-Identifier: MIT
// Statistics of an allocator, and their text form.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <weft/device/memory_options.hpp>
#include <weft/device/raw_memory.hpp>

namespace weft {

class block_pool;

/// Statistics of an allocator.
struct memory_figures {
  std::size_t in_use = 0;         // bytes held by buffers
  std::size_t peak = 0;           // maximum of in_use so far
  std::size_t reserved = 0;       // bytes allocated from the device, in use or cached
  std::size_t requests = 0;       // allocations from the device
  std::size_t peak_reserved = 0;  // maximum of reserved so far
  std::size_t awaited = 0;        // bytes of freed blocks that other queues still use
  std::size_t largest_free = 0;   // bytes of the largest cached block
  std::size_t blocks = 0;         // held by buffers
  std::size_t returned = 0;       // times that a part of the cache was returned to the device
  std::size_t retries = 0;        // requests for which all of it was, as the device had no more
  std::size_t failures = 0;       // requests for which that did not help
};

namespace detail {
[[gnu::cold]] std::string bytes_text(std::size_t bytes);
/// The largest blocks in use, one per line.
[[gnu::cold]] std::string largest_blocks(const block_pool& pool, std::size_t most);
[[gnu::cold]] std::string out_of_memory_text(std::string_view error, const char* what,
                                             const memory_figures& f, const device_room& room);
[[gnu::cold]] std::string summary_text(const memory_figures& f, const memory_options& o,
                                       const device_room& room, std::size_t limit);
}  // namespace detail

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/device/impl/memory_figures.ipp>
#endif
