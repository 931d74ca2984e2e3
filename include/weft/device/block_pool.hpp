// SPDX-License-Identifier: MIT
// The blocks of a caching allocator: which parts of its segments are free, and which block serves a request.
//
// A segment is memory that the device allocated in one piece, or a range of addresses whose pages are mapped
// as needed. Its blocks follow each other without gaps, and no two adjacent blocks are free. Free blocks are
// in lists by size class, eight classes per power of two; one bit per list says whether it is empty, so that
// a search takes constant time. Which block is found depends only on the order of calls, not on addresses, so
// a forecast on a device that only counts finds the same blocks.
//
// Not thread-safe. Memory is not accessed here.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <weft/device/memory_options.hpp>
#include <weft/device/raw_memory.hpp>

namespace weft {

/// A part of a segment.
struct memory_block {
  enum class use : std::uint8_t {
    unmapped,  // addresses without memory
    free,
    taken,
    awaited,  // freed, but another queue still uses it
    reserved  // freed, for the owner of a private pool
  };

  char* at = nullptr;
  std::size_t bytes = 0;
  std::size_t granted = 0;                            // for a taken block: the size class of its request
  memory_block *before = nullptr, *after = nullptr;   // the adjacent blocks of the segment
  memory_block *previous = nullptr, *next = nullptr;  // free blocks of one class
  memory_block *older = nullptr, *newer = nullptr;    // free blocks, by when they were freed
  use is = use::unmapped;
  bool in_range = false;                    // of addresses whose pages are mapped and unmapped
  const char* what = "";                    // for a taken block: what it holds
  std::shared_ptr<const std::string> name;  // of the tensor in it; null if it has none
  std::vector<std::shared_ptr<queue_use>> uses;

  bool is_free() const { return is == use::free; }
  bool is_segment() const { return !before && !after; }
  char* end() const { return at + bytes; }
};

/// Segments and their blocks. Requested sizes are size classes.
class block_pool {
 public:
  /// Blocks up to this size are not split and are not split off larger ones, since long-lived small tensors
  /// would keep large blocks from being joined.
  static constexpr std::size_t small = std::size_t{1} << 20;

  explicit block_pool(std::size_t max_split_size) : max_split_(max_split_size) {}
  block_pool(const block_pool&) = delete;
  block_pool& operator=(const block_pool&) = delete;

  /// Ensures that the next `count` blocks need no host memory: `add` and `map` create one each, `take` one,
  /// `unmap` two.
  void prepare(std::size_t count);

  /// A free block of at least `bytes`, split if it is much larger; null if there is none.
  memory_block* take(std::size_t bytes);
  /// Frees a taken or awaited block, and joins it with free neighbours.
  void give(memory_block& block) noexcept;

  /// A new segment, which is free.
  memory_block& add(void* at, std::size_t bytes);
  /// Removes a segment that is free.
  void remove(memory_block& segment) noexcept;

  /// Adds a range of addresses without memory, in whole pages.
  void add_range(void* at, std::size_t bytes, std::size_t page_bytes);
  struct missing_part {
    memory_block* block = nullptr;
    std::size_t bytes = 0;
  };
  /// The part of the range to map so that `bytes` are free: the beginning of an unmapped block. Null if there
  /// is no room.
  missing_part to_map(std::size_t bytes) const;
  void map(const missing_part& p) noexcept;
  /// Whole pages within a block, from `offset` on.
  struct pages {
    std::size_t offset = 0, bytes = 0;
  };
  pages pages_of(const memory_block& block) const;
  /// Takes pages out of a free block of the range.
  void unmap(memory_block& block, const pages& p) noexcept;

  /// The free block that was freed first; its `newer` is the next one. Null if there is none.
  memory_block* oldest() const { return oldest_; }
  /// The block that holds an address; null if it is in no segment.
  memory_block* holding(const void* address) const;
  std::size_t largest_free() const;

  template <class F>
  void for_each(F f) const {
    for (const auto& [address, first] : segments_)
      for (const memory_block* b = first; b; b = b->after) f(*b);
  }
  std::size_t segments() const { return segments_.size(); }

 private:
  static constexpr std::size_t classes = 8 * 56;
  /// The remainder of a split block serves no small requests.
  static constexpr std::size_t least_rest = small + small / 8;
  /// A request above max_split_ is served only by blocks that are at most this much larger.
  static constexpr std::size_t slack = std::size_t{20} << 20;

  static constexpr std::size_t octave_of(std::size_t bytes) {
    return static_cast<std::size_t>(std::bit_width((bytes - 1) >> 9));
  }
  /// Index of the class, in order of size, to which this many bytes are rounded up.
  static constexpr std::size_t class_above(std::size_t bytes) {
    const std::size_t octave = octave_of(bytes);
    return 8 * octave + (bytes - 1) / class_step(octave) % 8;
  }
  /// The largest class whose requests this many bytes can serve.
  static constexpr std::size_t class_below(std::size_t bytes) {
    return class_above(bytes) - (bytes % class_step(octave_of(bytes)) == 0 ? 0 : 1);
  }
  static constexpr std::size_t class_step(std::size_t octave) {
    return std::size_t{64} << (octave ? octave - 1 : 0);
  }

  /// The first class from `c` on that has free blocks.
  std::size_t next_class(std::size_t c) const;
  memory_block* larger(std::size_t c, std::size_t bytes) const;
  bool may_serve(const memory_block& block, std::size_t bytes) const {
    if (block.in_range) return true;
    return bytes < max_split_ ? block.bytes < max_split_ : block.bytes - bytes < slack;
  }

  memory_block& new_block(char* at, std::size_t bytes, memory_block::use is);
  void forget(memory_block& block) noexcept;
  /// Splits off the part of a block after the first `bytes`, as a block next to it.
  memory_block& split(memory_block& block, std::size_t bytes) noexcept;
  /// Joins a block with the one behind it.
  void absorb_next(memory_block& block) noexcept;
  /// Joins a block that is in no list with neighbours of the same state; the result is in no list.
  memory_block& joined(memory_block& block) noexcept;
  void list(memory_block& block) noexcept;
  void unlist(memory_block& block) noexcept;

  std::size_t max_split_;
  std::array<memory_block*, classes> free_{};
  std::array<std::uint64_t, classes / 64> has_free_{};
  memory_block *oldest_ = nullptr, *newest_ = nullptr;  // of all free blocks
  std::map<std::uintptr_t, memory_block*> segments_;  // their first blocks by address
  memory_block* range_ = nullptr;                     // the first block of the range
  std::size_t page_ = 1;
  std::deque<memory_block> blocks_;
  memory_block* spare_ = nullptr;  // linked by next
  std::size_t spares_ = 0;
};

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/device/impl/block_pool.ipp>
#endif
