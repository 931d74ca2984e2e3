// SPDX-License-Identifier: MIT
// Definitions of <weft/device/block_pool.hpp>.
#pragma once

#include <utility>

#include <weft/base/config.hpp>
#include <weft/device/block_pool.hpp>

namespace weft {

WEFT_DEFINE void block_pool::prepare(std::size_t count) {
  while (spares_ < count) {
    memory_block& b = blocks_.emplace_back();
    b.next = std::exchange(spare_, &b);
    ++spares_;
  }
}

WEFT_DEFINE memory_block* block_pool::take(std::size_t bytes) {
  const std::size_t c = class_above(bytes);
  memory_block* found = free_[c];
  if (!found) {
    if (bytes > small) found = larger(c, bytes);
    if (!found) return nullptr;
  }
  const std::size_t rest = found->bytes - bytes;
  const bool splits = rest >= least_rest && (found->in_range || bytes < max_split_);
  if (splits) prepare(1);
  unlist(*found);
  if (splits) list(split(*found, bytes));
  found->is = memory_block::use::taken;
  found->granted = bytes;
  return found;
}

WEFT_DEFINE void block_pool::give(memory_block& block) noexcept {
  block.is = memory_block::use::free;
  list(joined(block));
}

WEFT_DEFINE memory_block& block_pool::add(void* at, std::size_t bytes) {
  prepare(1);
  const auto place = segments_.emplace(reinterpret_cast<std::uintptr_t>(at), nullptr).first;
  memory_block& b = new_block(static_cast<char*>(at), bytes, memory_block::use::free);
  place->second = &b;
  list(b);
  return b;
}

WEFT_DEFINE void block_pool::remove(memory_block& segment) noexcept {
  unlist(segment);
  segments_.erase(reinterpret_cast<std::uintptr_t>(segment.at));
  forget(segment);
}

WEFT_DEFINE void block_pool::add_range(void* at, std::size_t bytes, std::size_t page_bytes) {
  prepare(1);
  const auto place = segments_.emplace(reinterpret_cast<std::uintptr_t>(at), nullptr).first;
  range_ = &new_block(static_cast<char*>(at), bytes, memory_block::use::unmapped);
  range_->in_range = true;
  place->second = range_;
  page_ = page_bytes;
}

WEFT_DEFINE block_pool::missing_part block_pool::to_map(std::size_t bytes) const {
  for (memory_block* b = range_; b; b = b->after) {
    if (b->is != memory_block::use::unmapped) continue;
    const std::size_t below = b->before && b->before->is_free() ? b->before->bytes : 0;
    const std::size_t above = b->after && b->after->is_free() ? b->after->bytes : 0;
    const std::size_t missing = (bytes - std::min(bytes, below) + page_ - 1) / page_ * page_;
    if (missing <= b->bytes) return {b, missing};
    if (below + b->bytes + above >= bytes) return {b, b->bytes};
  }
  return {};
}

WEFT_DEFINE void block_pool::map(const missing_part& p) noexcept {
  if (p.bytes < p.block->bytes) split(*p.block, p.bytes);
  give(*p.block);
}

WEFT_DEFINE block_pool::pages block_pool::pages_of(const memory_block& block) const {
  const auto first = static_cast<std::size_t>(block.at - range_->at);
  const std::size_t begin = (first + page_ - 1) / page_ * page_, end = (first + block.bytes) / page_ * page_;
  if (begin >= end) return {};
  return {begin - first, end - begin};
}

WEFT_DEFINE void block_pool::unmap(memory_block& block, const pages& p) noexcept {
  unlist(block);
  memory_block* middle = &block;
  if (p.offset > 0) {
    middle = &split(block, p.offset);
    list(block);
  }
  if (middle->bytes > p.bytes) list(split(*middle, p.bytes));
  middle->is = memory_block::use::unmapped;
  joined(*middle);
}

WEFT_DEFINE memory_block* block_pool::holding(const void* address) const {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  auto after = segments_.upper_bound(at);
  if (after == segments_.begin()) return nullptr;
  for (memory_block* b = std::prev(after)->second; b; b = b->after)
    if (at < reinterpret_cast<std::uintptr_t>(b->end())) return b;
  return nullptr;
}

WEFT_DEFINE std::size_t block_pool::largest_free() const {
  std::size_t most = 0, last = classes;
  for (std::size_t word = has_free_.size(); last == classes && word-- > 0;)
    if (has_free_[word] != 0)
      last = word * 64 + static_cast<std::size_t>(std::bit_width(has_free_[word])) - 1;
  if (last == classes) return 0;
  for (const memory_block* b = free_[last]; b; b = b->next) most = std::max(most, b->bytes);
  return most;
}

WEFT_DEFINE std::size_t block_pool::next_class(std::size_t c) const {
  for (std::size_t word = c / 64, first = c % 64; word < has_free_.size(); ++word, first = 0)
    if (const std::uint64_t rest = has_free_[word] >> first << first; rest != 0)
      return word * 64 + static_cast<std::size_t>(std::countr_zero(rest));
  return classes;
}

WEFT_DEFINE memory_block* block_pool::larger(std::size_t c, std::size_t bytes) const {
  for (std::size_t n = next_class(c + 1); n < classes; n = next_class(n + 1))
    for (memory_block* b = free_[n]; b; b = b->next)
      if (may_serve(*b, bytes)) return b;
  return nullptr;
}

WEFT_DEFINE memory_block& block_pool::new_block(char* at, std::size_t bytes, memory_block::use is) {
  memory_block& b = *spare_;
  spare_ = b.next;
  --spares_;
  b.next = nullptr;
  b.at = at;
  b.bytes = bytes;
  b.is = is;
  return b;
}

WEFT_DEFINE void block_pool::forget(memory_block& block) noexcept {
  block.before = block.after = nullptr;
  block.in_range = false;
  block.next = std::exchange(spare_, &block);
  ++spares_;
}

WEFT_DEFINE memory_block& block_pool::split(memory_block& block, std::size_t bytes) noexcept {
  memory_block& rest = new_block(block.at + bytes, block.bytes - bytes, block.is);
  block.bytes = bytes;
  rest.in_range = block.in_range;
  rest.before = &block;
  rest.after = std::exchange(block.after, &rest);
  if (rest.after) rest.after->before = &rest;
  return rest;
}

WEFT_DEFINE void block_pool::absorb_next(memory_block& block) noexcept {
  memory_block& other = *block.after;
  block.bytes += other.bytes;
  block.after = other.after;
  if (block.after) block.after->before = &block;
  forget(other);
}

WEFT_DEFINE memory_block& block_pool::joined(memory_block& block) noexcept {
  memory_block* whole = &block;
  if (block.after && block.after->is == block.is) {
    if (block.is_free()) unlist(*block.after);
    absorb_next(block);
  }
  if (block.before && block.before->is == block.is) {
    whole = block.before;
    if (whole->is_free()) unlist(*whole);
    absorb_next(*whole);
  }
  return *whole;
}

WEFT_DEFINE void block_pool::list(memory_block& block) noexcept {
  const std::size_t c = class_below(block.bytes);
  block.previous = nullptr;
  block.next = std::exchange(free_[c], &block);
  if (block.next) block.next->previous = &block;
  has_free_[c / 64] |= std::uint64_t{1} << c % 64;
  block.newer = nullptr;
  block.older = std::exchange(newest_, &block);
  (block.older ? block.older->newer : oldest_) = &block;
}

WEFT_DEFINE void block_pool::unlist(memory_block& block) noexcept {
  const std::size_t c = class_below(block.bytes);
  (block.previous ? block.previous->next : free_[c]) = block.next;
  if (block.next) block.next->previous = block.previous;
  if (!free_[c]) has_free_[c / 64] &= ~(std::uint64_t{1} << c % 64);
  (block.older ? block.older->newer : oldest_) = block.newer;
  (block.newer ? block.newer->older : newest_) = block.older;
  block.next = nullptr;
}

}  // namespace weft
