// SPDX-License-Identifier: MIT
// Ranks as threads of one process: the default, on which all parallel tests run.
//
//   run_ranks(4, [](communicator& ranks) {
//     std::vector<float> x{1};
//     ranks.all_reduce(x).wait();          // {4} on every rank
//   });
//
// An operation is ready when all ranks have posted it. Its work is divided into chunks, which ranks that wait
// or poll take one by one: progress does not depend on a background thread.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include <weft/comm/communicator.hpp>
#include <weft/comm/thread_group.hpp>

namespace weft {

/// A rank of a group of threads; see run_ranks.
class threads_communicator : public communicator {
 public:
  threads_communicator(const std::shared_ptr<detail::thread_group>& group, int rank)
      : group_(group.get(), [group](detail::thread_group*) {}),
        rank_(rank) {}  // a separate reference count, which no other rank modifies
  threads_communicator(const threads_communicator&) = delete;
  threads_communicator& operator=(const threads_communicator&) = delete;
  ~threads_communicator() override { group_->leave(rank_); }

  const char* name() const override { return "threads"; }
  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }

  void abort(const std::string& reason) override;
  std::exception_ptr failure() const override {
    const std::lock_guard lock(group_->world().mutex);
    return group_->world().aborted;
  }

 protected:
  std::shared_ptr<communicator> divide(int color, int key, comm_options o) override;
  work start(operation o) override;

 private:
  std::shared_ptr<detail::thread_group> group_;
  int rank_;
};

namespace detail {

/// Whether this thread is a rank of run_ranks.
inline thread_local bool is_rank = false;

/// Threads that are the ranks of a group, and run `body`.
class rank_threads {
 public:
  rank_threads(int n, std::function<void(communicator&)> body);
  rank_threads(const rank_threads&) = delete;
  rank_threads& operator=(const rank_threads&) = delete;
  ~rank_threads() { join(); }

  /// Waits until a rank has failed or all have ended; returns the first exception, or null.
  std::exception_ptr first_failure();
  /// Waits at most `limit` until all have ended; returns whether they have.
  bool end_within(std::chrono::milliseconds limit);
  void join() {
    for (std::thread& t : threads_)
      if (t.joinable()) t.join();
  }

 private:
  void run(const std::shared_ptr<thread_group>& group, int rank);
  void keep(std::exception_ptr e) {
    const std::lock_guard lock(mutex_);
    if (!first_) first_ = std::move(e);
    changed_.notify_all();
  }

  std::function<void(communicator&)> body_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::exception_ptr first_;
  std::size_t ended_ = 0, started_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace detail

/// Runs f(communicator) on `n` ranks, each a thread. When all have ended, rethrows the first exception of any
/// rank; comm_error if a thread could not be started. A thread cannot be ended from outside, so run_ranks
/// waits for a rank that hangs, after the other ranks have thrown timeout_error (run_world then ends the
/// process). Throws usage_error if `n` is less than 1, or if a rank calls it, because threads would wait for
/// each other: use split() for groups of ranks.
template <class F>
void run_ranks(int n, F f) {
  detail::rank_threads threads(n, [&f](communicator& ranks) { f(ranks); });
  threads.join();
  if (const auto e = threads.first_failure()) std::rethrow_exception(e);
}

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/comm/impl/threads.ipp>
#endif
