// SPDX-License-Identifier: MIT
// The meeting points of ranks that are threads: collectives, which all ranks join without a lock, messages
// between two ranks, and the state of the whole run.
//
// Collectives form a list of rendezvous, which each rank traverses at its own pace. Their atomics are
// sequentially consistent. What each of them publishes:
//
//   posted[r]  is written by rank r before it increments `arrived`. Only the rank whose increment makes the
//              number complete starts the work, so it reads all of them.
//   arrived    decides between start and cancellation. A rank cancels by setting a bit while another is
//              missing; the increment of that one then finds the bit, and does not start the work.
//   at         is `ready` after `chunks` have been written. Who reads `ready` may read them.
//   taken      of a chunk is exchanged, so that one rank executes it. `finished` counts those that are done;
//              the rank that completes the number sets `over`, and who reads `over` may read the results.
//   next       is set once. A rank that finds none offers its own, and takes what another has set before.
//   users      is 2 for each rank: its place in the list, and the handle of its operation. Who takes the last
//              deletes.
//
// No wake-up is lost: before it sleeps, a rank is counted in `sleepers` and checks its condition once more,
// both under the lock; a thread that changes the condition does so before it reads `sleepers` and takes the
// lock.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include <weft/base/recycled.hpp>
#include <weft/comm/chunks.hpp>
#include <weft/comm/work.hpp>

namespace weft {

namespace detail {

class thread_group;
struct rendezvous;
struct message;

/// The operation that a rank waits for.
struct thread_wait {
  const thread_group* group;
  const rendezvous* in;  // or
  const message* from;   // a message whose other side is `peer`
  int peer;
};

/// State shared by all threads of a run: one lock for infrequent events, and the reason to give up.
struct thread_world {
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<int> sleepers = 0;  // threads that wait for a change, or are about to
  std::exception_ptr aborted;
  std::atomic<bool> gave_up = false;  // the same, readable without the lock
  std::map<int, thread_wait> waits;   // of sleeping ranks; requires the lock

  /// Wakes threads that wait for a value that has been set. The caller must not hold the lock.
  void tell() {
    if (sleepers == 0) return;
    const std::lock_guard lock(mutex);
    changed.notify_all();
  }

  /// Makes everything fail from now on. Requires the lock.
  template <class Error = comm_error>
  void give_up(const std::string& report) {
    give_up(std::make_exception_ptr(Error(report)));
  }
  void give_up(std::exception_ptr why) {
    if (!aborted) aborted = std::move(why);
    gave_up = true;
    changed.notify_all();
  }
};

/// One collective: the operations that the ranks have posted, and the chunks of its work.
struct rendezvous {
  enum class stage { gathering, ready, over, refused };

  rendezvous(int ranks, std::uint64_t n, int uses)
      : number(n), posted(static_cast<std::size_t>(ranks)), users(uses) {}
  static void* operator new(std::size_t bytes) { return recycled_blocks::take(bytes); }
  static void operator delete(void* memory, std::size_t bytes) { recycled_blocks::give(memory, bytes); }

  /// Prevents the work from starting; false if it has started or is about to.
  bool cancel() {
    int before = arrived;
    while (before < static_cast<int>(posted.size()))
      if (arrived.compare_exchange_weak(before, before | cancelled)) return true;
    return before & cancelled;
  }
  bool is_over() const { return at == stage::over; }

  std::uint64_t number;
  recycled_vector<operation> posted;  // by rank; each rank writes its own
  std::atomic<rendezvous*> next = nullptr;
  std::atomic<int> arrived = 0;  // number of ranks, and whether it is cancelled
  static constexpr int cancelled = 1 << 30;
  std::atomic<int> users;  // for each rank, its place in the list and the handle of its operation
  std::shared_ptr<std::vector<std::pair<std::shared_ptr<thread_group>, int>>>
      divided;  // the groups of a split, by rank; requires the lock

  recycled_vector<chunk> chunks;  // from `ready` on
  std::atomic<std::size_t> finished = 0;
  std::atomic<bool> failed = false;  // one of the chunks
  char apart[64];  // a separate cache line for the values that waiting ranks poll
  std::atomic<stage> at = stage::gathering;
};

/// One message, posted by its sender, its receiver, or both.
struct message {
  bool sent = false, wanted = false, over = false;
  const_elements from;
  elements to;
  std::vector<char> copy;  // of a short message, so that its sender can continue
  std::string sender, receiver;
  int sender_rank = 0, receiver_rank = 0;
};

}  // namespace detail

}  // namespace weft
