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

#include <mutex>
#include <system_error>
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

  std::shared_ptr<communicator> split(int color, int key, comm_options o) override;

  void abort(const std::string& reason) override;
  std::exception_ptr failure() const override {
    const std::lock_guard lock(group_->world().mutex);
    return group_->world().aborted;
  }

 protected:
  work start(operation o) override;

 private:
  std::shared_ptr<detail::thread_group> group_;
  int rank_;
};

namespace detail {

/// Whether this thread is a rank of run_ranks.
inline thread_local bool is_rank = false;

}  // namespace detail

/// Runs f(communicator) on `n` ranks, each a thread. When all have ended, rethrows the first exception of any
/// rank; comm_error if a thread could not be started. Throws usage_error if `n` is less than 1, or if it is
/// called by a rank, whose threads would wait for each other: use split() for groups of ranks.
template <class F>
void run_ranks(int n, F f) {
  if (n < 1) throw usage_error("weft: run_ranks: " + std::to_string(n) + " ranks: expected 1 or more");
  if (detail::is_rank) throw usage_error("weft: run_ranks: called by a rank; ranks.split() makes groups");
  auto world = std::make_shared<detail::thread_world>();
  const auto group = std::make_shared<detail::thread_group>(world, n);
  std::exception_ptr first;
  std::mutex guard;
  const auto keep = [&](std::exception_ptr e) {
    const std::lock_guard lock(guard);
    if (!first) first = std::move(e);
  };
  const auto rank = [&](int r) {
    detail::is_rank = true;
    threads_communicator ranks(group, r);
    try {
      f(static_cast<communicator&>(ranks));
    } catch (...) {
      keep(std::current_exception());
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(n));
  try {
    for (int r = 0; r < n; ++r) threads.emplace_back(rank, r);
  } catch (const std::system_error& e) {
    const std::string why = "weft: run_ranks: rank " + std::to_string(threads.size()) + " of " +
                            std::to_string(n) + " could not be started: " + e.what();
    keep(std::make_exception_ptr(comm_error(why)));
    const std::lock_guard lock(world->mutex);
    world->give_up(why);
  }
  for (std::thread& t : threads) t.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/comm/impl/threads.ipp>
#endif
