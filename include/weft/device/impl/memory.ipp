// SPDX-License-Identifier: MIT
// Definitions of <weft/device/memory.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/device/memory.hpp>

namespace weft {

WEFT_DEFINE void* caching_allocator::allocate(std::size_t bytes, std::size_t& granted) {
  granted = size_class(bytes);
  const std::lock_guard lock(mutex_);
  pool* const own = own_pool();
  auto& kept = own ? own->free_[class_number(granted)] : free_[class_number(granted)];
  auto& blocks = kept.empty() ? free_[class_number(granted)] : kept;
  void* block = nullptr;
  if (blocks.empty()) {
    block = request(granted);
  } else {
    block = blocks.back();
    blocks.pop_back();
  }
  figures_.in_use += granted;
  figures_.peak = std::max(figures_.peak, figures_.in_use);
  allow(block, bytes);
  return block;
}

WEFT_DEFINE void caching_allocator::deallocate(void* block, std::size_t granted) noexcept {
  const std::lock_guard lock(mutex_);
  figures_.in_use -= granted;
  pool* const own = own_pool();
  auto& blocks = own ? own->free_[class_number(granted)] : free_[class_number(granted)];
  forbid(block, granted);
  try {
    blocks.push_back(block);
  } catch (const std::bad_alloc&) {  // the block cannot be cached
    figures_.reserved -= granted;
    give_back(block, granted);
  }
}

WEFT_DEFINE void* caching_allocator::request(std::size_t granted) {
  free_[class_number(granted)].reserve(16);
  if (figures_.reserved > limit_ - std::min(granted, limit_)) release();
  void* block = nullptr;
  try {
    block = device_->allocate(granted);
  } catch (const out_of_memory_error&) {
    if (figures_.reserved == figures_.in_use) throw;
    release();
    block = device_->allocate(granted);
  }
  figures_.reserved += granted;
  ++figures_.requests;
  forbid(block, granted);
  return block;
}

WEFT_DEFINE void caching_allocator::release() noexcept {
  for (std::size_t c = 0; c < classes; ++c) {
    for (void* block : free_[c]) give_back(block, class_bytes(c));
    figures_.reserved -= class_bytes(c) * free_[c].size();
    free_[c].clear();
  }
}

WEFT_DEFINE void caching_allocator::pool::open() {
  of_.opening_.lock();
  const std::lock_guard lock(of_.mutex_);
  of_.open_ = this;
  of_.user_ = std::this_thread::get_id();
}

WEFT_DEFINE void caching_allocator::pool::close() noexcept {
  {
    const std::lock_guard lock(of_.mutex_);
    of_.open_ = nullptr;
  }
  of_.opening_.unlock();
}

WEFT_DEFINE caching_allocator::pool::~pool() {
  const std::lock_guard lock(of_.mutex_);
  for (std::size_t c = 0; c < classes; ++c)
    for (void* block : free_[c]) try {
        of_.free_[c].push_back(block);
      } catch (const std::bad_alloc&) {  // the block cannot be cached
        of_.figures_.reserved -= class_bytes(c);
        of_.give_back(block, class_bytes(c));
      }
}

}  // namespace weft
