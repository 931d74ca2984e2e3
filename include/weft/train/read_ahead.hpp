// SPDX-License-Identifier: MIT
// A ring of slots that a thread fills ahead of their use. Slots are reused, so that their memory is kept.
//
//   read_ahead<line> lines(3, [&](line& l) { read(l.number, l.text); });
//   lines.free().number = 7;
//   lines.submit();
//   use(lines.filled());
//   lines.drop();
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace weft {

/// With one slot there is no thread: `filled` fills it on demand. `filled` rethrows what `fill` throws.
template <class Slot>
class read_ahead {
 public:
  read_ahead(std::size_t slots, std::function<void(Slot&)> fill) : ring_(slots), fill_(std::move(fill)) {
    if (slots > 1) thread_ = std::thread([this] { run(); });
  }
  read_ahead(const read_ahead&) = delete;
  read_ahead& operator=(const read_ahead&) = delete;
  ~read_ahead() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  bool empty() const { return dropped_ == submitted_; }
  bool full() const { return submitted_ - dropped_ == ring_.size(); }

  /// The slot to be described before `submit`; there is one unless full().
  Slot& free() { return at(submitted_).content; }
  void submit() {
    {
      const std::lock_guard lock(mutex_);
      ++submitted_;
    }
    changed_.notify_all();
  }

  /// The description of the oldest submitted slot.
  const Slot& oldest() const { return ring_[dropped_ % ring_.size()].content; }
  /// Waits for the oldest submitted slot to be filled, and returns it.
  Slot& filled() {
    wait();
    if (at(dropped_).failure) std::rethrow_exception(at(dropped_).failure);
    return at(dropped_).content;
  }
  void drop() {
    wait();
    ++dropped_;
  }

 private:
  struct entry {
    Slot content;
    std::exception_ptr failure;
  };

  entry& at(std::size_t number) { return ring_[number % ring_.size()]; }

  void wait() {
    std::unique_lock lock(mutex_);
    if (thread_.joinable()) changed_.wait(lock, [&] { return filled_ > dropped_; });
    else if (filled_ == dropped_) fill(at(filled_++));
  }
  void fill(entry& e) {
    e.failure = nullptr;
    try {
      fill_(e.content);
    } catch (...) {
      e.failure = std::current_exception();
    }
  }
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return ends_ || filled_ < submitted_; });
      if (ends_) return;
      entry& next = at(filled_);
      lock.unlock();
      fill(next);
      lock.lock();
      ++filled_;
      changed_.notify_all();
    }
  }

  std::vector<entry> ring_;
  std::function<void(Slot&)> fill_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t submitted_ = 0, filled_ = 0;  // counts; the thread's part under the mutex
  std::size_t dropped_ = 0;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace weft
