// SPDX-License-Identifier: MIT
// How an allocator caches memory: by options, or by the environment variable WEFT_ALLOC_CONF with PyTorch's
// keys.
//
//   device gpu(backend, {.expandable_segments = true});
//   WEFT_ALLOC_CONF=expandable_segments:true,garbage_collection_threshold:0.8 ./train
#pragma once

#include <cstddef>
#include <limits>
#include <string_view>

namespace weft {

/// Options of a caching allocator.
struct memory_options {
  static constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

  /// Blocks larger than this are not split and serve only requests of about their size, so that they can be
  /// returned to the device whole. PyTorch's max_split_size_mb, in bytes.
  std::size_t max_split_size = unlimited;
  /// Fraction of the device's memory, or of the allocator's limit if that is less, above which the cached
  /// blocks that were freed first are returned before the device is asked for more. 0: only when it has no
  /// more.
  double garbage_collection_threshold = 0;
  /// On devices that support it, requests above 1 MiB share one range of addresses, to which memory is mapped
  /// page by page, so that growing requests find room next to free blocks.
  bool expandable_segments = false;

  /// "max_split_size_mb:128,garbage_collection_threshold:0.8,expandable_segments:true", each at most once.
  /// Throws usage_error that names the error.
  static memory_options parse(std::string_view text);
  /// The options in WEFT_ALLOC_CONF.
  static memory_options from_environment();
};

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/device/impl/memory_options.ipp>
#endif
