// SPDX-License-Identifier: MIT
// Definitions of <weft/device/memory.hpp>.
#pragma once

#include <algorithm>

#include <weft/base/config.hpp>
#include <weft/device/block_pool.hpp>
#include <weft/device/memory.hpp>

namespace weft {

WEFT_DEFINE caching_allocator::caching_allocator(std::shared_ptr<backend> device,
                                                 const memory_options& options)
    : device_(std::move(device)),
      options_(options),
      pool_(std::make_unique<block_pool>(options.max_split_size)) {}

WEFT_DEFINE caching_allocator::~caching_allocator() {
  await_uses(true);
  for (memory_block* block : awaited_) pool_->give(*block);  // used by queues that will never finish
  trim(0);
  if (range_) device_->mapped()->unreserve(range_, range_bytes_);
}

WEFT_DEFINE caching_allocator::allocation caching_allocator::allocate(std::size_t bytes, const char* what) {
  const std::size_t granted = size_class(bytes);
  const std::lock_guard lock(mutex_);
  if (!awaited_.empty()) await_uses(false);
  private_pool* const own = own_pool();
  if (own) own->make_room();
  memory_block* found = own ? own->take(granted) : nullptr;
  if (!found) found = pool_->take(granted);
  memory_block& block = found ? *found : obtain(granted, what);
  block.what = what;
  figures_.in_use += granted;
  figures_.peak = std::max(figures_.peak, figures_.in_use);
  ++figures_.blocks;
  allow(block.at, bytes);
  return {&block, block.at};
}

WEFT_DEFINE void caching_allocator::describe(memory_block& block, const char* what,
                                             const memory_block* named) {
  const std::lock_guard lock(mutex_);
  block.what = what;
  if (named) block.name = named->name;
}

WEFT_DEFINE void caching_allocator::set_name(memory_block& block, std::shared_ptr<const std::string> name) {
  const std::lock_guard lock(mutex_);
  block.name = std::move(name);
}

WEFT_DEFINE std::pair<const char*, std::shared_ptr<const std::string>> caching_allocator::description_of(
    const memory_block& block) const {
  const std::lock_guard lock(mutex_);
  return {block.what, block.name};
}

WEFT_DEFINE void caching_allocator::empty_cache() {
  const std::lock_guard lock(mutex_);
  await_uses(false);
  trim(0);
}

WEFT_DEFINE memory_figures caching_allocator::figures() const {
  const std::lock_guard lock(mutex_);
  return current_figures();
}

WEFT_DEFINE memory_figures caching_allocator::current_figures() const {
  memory_figures f = figures_;
  f.largest_free = pool_->largest_free();
  return f;
}

WEFT_DEFINE void caching_allocator::deallocate(memory_block& block) noexcept {
  const std::lock_guard lock(mutex_);
  figures_.in_use -= block.granted;
  --figures_.blocks;
  block.name.reset();
  forbid(block.at, block.bytes);
  if (block.uses.empty()) {
    private_pool* const own = own_pool();
    if (!own) return pool_->give(block);
    block.is = memory_block::use::reserved;
    return own->free_.push_back(&block);
  }
  block.is = memory_block::use::awaited;
  figures_.awaited += block.bytes;
  for (const auto& use : block.uses) use->close();
  awaited_.push_back(&block);  // record_use made room
  await_uses(false);
}

WEFT_DEFINE bool caching_allocator::record_use(const void* address, std::shared_ptr<queue_use> use) {
  const std::lock_guard lock(mutex_);
  memory_block* const block = pool_->holding(address);
  if (!block || block->is != memory_block::use::taken) return false;
  awaited_.reserve(figures_.blocks + awaited_.size());
  const bool asks = !device_->is_recording();
  std::erase_if(block->uses,
                [&](const auto& earlier) { return earlier == use || (asks && is_over(*earlier, false)); });
  block->uses.push_back(std::move(use));
  return true;
}

WEFT_DEFINE memory_block& caching_allocator::obtain(std::size_t granted, const char* what) {
  if (device_->is_recording()) return *request(granted);  // the device refuses
  const std::size_t most = threshold(), beside = most - std::min(granted, most);
  if (figures_.reserved > beside) trim(beside);
  try {
    return *request(granted);
  } catch (const out_of_memory_error& e) {
    if (awaited_.empty() && figures_.reserved == figures_.in_use) refuse(e, granted, what);
  }
  ++figures_.retries;
  await_uses(true);
  for (bool yields = false;; yields = true) {
    if (yields)
      for (private_pool* p : private_pools_) p->yield();
    if (memory_block* const found = pool_->take(granted)) return *found;
    trim(0);
    try {
      return *request(granted);
    } catch (const out_of_memory_error& e) {
      if (yields) refuse(e, granted, what);
    }
  }
}

WEFT_DEFINE memory_block* caching_allocator::request(std::size_t granted) {
  const bool expands = granted > block_pool::small && options_.expandable_segments;
  if (expands && !device_->is_recording() && extend(granted)) return pool_->take(granted);
  void* const memory = device_->allocate(granted);
  try {
    pool_->add(memory, granted);
  } catch (...) {
    device_->deallocate(memory, granted);
    throw;
  }
  note_reserved(granted);
  forbid(memory, granted);
  return pool_->take(granted);
}

WEFT_DEFINE bool caching_allocator::extend(std::size_t granted) {
  mapped_memory* const pages = range();
  if (!pages) return false;
  pool_->prepare(2);
  const block_pool::missing_part missing = pool_->to_map(granted);
  if (!missing.block) return false;
  pages->map(missing.block->at, missing.bytes);
  forbid(missing.block->at, missing.bytes);
  pool_->map(missing);
  note_reserved(missing.bytes);
  return true;
}

WEFT_DEFINE mapped_memory* caching_allocator::range() {
  mapped_memory* const pages = device_->mapped();
  if (tried_range_ || !pages) return range_ ? pages : nullptr;
  tried_range_ = true;
  const std::size_t page = pages->page_bytes(), total = pages->capacity();
  const std::size_t bytes = (total + total / 8) / page * page;  // more than the capacity, to allow for holes
  if (bytes == 0) return nullptr;
  char* const at = static_cast<char*>(pages->reserve(bytes));
  try {
    pool_->add_range(at, bytes, page);
  } catch (...) {
    pages->unreserve(at, bytes);
    throw;
  }
  range_ = at;
  range_bytes_ = bytes;
  return pages;
}

WEFT_DEFINE bool caching_allocator::is_over(queue_use& use, bool waits) noexcept {
  try {
    if (waits) use.wait();
    return use.is_over();
  } catch (...) { return true; }  // the device has failed: nothing runs there any more
}

WEFT_DEFINE void caching_allocator::await_uses(bool waits) noexcept {
  if (device_->is_recording()) return;  // recorded work cannot ask how far queues are
  std::erase_if(awaited_, [&](memory_block* block) {
    while (!block->uses.empty() && is_over(*block->uses.back(), waits)) block->uses.pop_back();
    if (!block->uses.empty()) return false;
    figures_.awaited -= block->bytes;
    pool_->give(*block);
    return true;
  });
}

WEFT_DEFINE void caching_allocator::trim(std::size_t most) noexcept {
  for (memory_block *block = pool_->oldest(), *next; block && figures_.reserved > most; block = next) {
    next = block->newer;
    return_memory(*block);  // the rest of the block becomes the newest
  }
}

WEFT_DEFINE void caching_allocator::return_memory(memory_block& block) noexcept {
  if (!block.in_range) {
    if (!block.is_segment()) return;
    allow(block.at, block.bytes);
    device_->deallocate(block.at, block.bytes);
    figures_.reserved -= block.bytes;
    pool_->remove(block);
  } else {
    const block_pool::pages whole = pool_->pages_of(block);
    if (whole.bytes == 0) return;
    try {
      pool_->prepare(2);
    } catch (const std::bad_alloc&) { return; }
    allow(block.at + whole.offset, whole.bytes);
    device_->mapped()->unmap(block.at + whole.offset, whole.bytes);
    figures_.reserved -= whole.bytes;
    pool_->unmap(block, whole);
  }
  ++figures_.returned;
}

WEFT_DEFINE std::size_t caching_allocator::threshold() const {
  if (options_.garbage_collection_threshold == 0) return limit_;
  const std::size_t total = device_->room().total, most = total ? std::min(total, limit_) : limit_;
  if (most == memory_options::unlimited) return most;
  return static_cast<std::size_t>(options_.garbage_collection_threshold * static_cast<double>(most));
}

WEFT_DEFINE void caching_allocator::refuse(const out_of_memory_error& e, std::size_t granted,
                                           const char* what) {
  ++figures_.failures;
  const device_room room = device_->room();
  throw out_of_memory_error(
      detail::out_of_memory_text(e.what(), what, current_figures(), room) + detail::largest_blocks(*pool_, 8),
      {granted, figures_.in_use, figures_.reserved, room.free});
}

WEFT_DEFINE std::string caching_allocator::summary() const {
  const std::lock_guard lock(mutex_);
  std::string text = "memory of " + device_->description() + "\n" +
                     detail::summary_text(current_figures(), options_, device_->room(), limit_);
  if (options_.expandable_segments)
    text += device_->mapped()
                ? "  expandable segments\n"
                : "  expandable segments were requested, but this device does not support them\n";
  if (figures_.blocks) text += "  the largest blocks in use:" + detail::largest_blocks(*pool_, 16) + "\n";
  return text;
}

WEFT_DEFINE void caching_allocator::private_pool::open() {
  std::unique_lock alone(of_.opening_);
  const std::lock_guard lock(of_.mutex_);
  make_room();
  alone.release();
  of_.open_ = this;
  of_.user_ = std::this_thread::get_id();
}

WEFT_DEFINE void caching_allocator::private_pool::close() noexcept {
  {
    const std::lock_guard lock(of_.mutex_);
    of_.open_ = nullptr;
  }
  of_.opening_.unlock();
}

WEFT_DEFINE caching_allocator::private_pool::private_pool(caching_allocator& of) : of_(of) {
  const std::lock_guard lock(of_.mutex_);
  of_.private_pools_.push_back(this);
}

WEFT_DEFINE caching_allocator::private_pool::~private_pool() {
  const std::lock_guard lock(of_.mutex_);
  std::erase(of_.private_pools_, this);
  for (memory_block* block : free_) of_.pool_->give(*block);
}

WEFT_DEFINE bool caching_allocator::private_pool::seal() {
  const std::lock_guard lock(of_.mutex_);
  sealed_ = !std::exchange(yielded_, false);
  return sealed_;
}

WEFT_DEFINE void caching_allocator::private_pool::yield() noexcept {
  if (sealed_ || free_.empty()) return;
  for (memory_block* block : free_) of_.pool_->give(*block);
  free_.clear();
  yielded_ = true;
}

WEFT_DEFINE memory_block* caching_allocator::private_pool::take(std::size_t granted) {
  const auto found = std::find_if(free_.begin(), free_.end(), [&](const memory_block* b) {
    return b->granted == granted;
  });
  if (found == free_.end()) return nullptr;
  memory_block* const block = *found;
  free_.erase(found);
  block->is = memory_block::use::taken;
  return block;
}

}  // namespace weft
