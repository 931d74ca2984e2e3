// SPDX-License-Identifier: MIT
// An NCCL communicator with its own stream, and the tasks that are queued on it one after another.
//
// Nothing here blocks: communicators are formed, and calls are made, in NCCL's non-blocking mode, and
// `advance` does what is possible now. A call returns before its kernel is on the stream, so the next call,
// and the event after it, must wait until the communicator's state says that it is.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include <weft/device/device.hpp>
#include <weft/gpu/cuda_event.hpp>
#include <weft/gpu/nccl_library.hpp>

namespace weft::gpu {

/// What an operation queues on a channel's stream: stages, which run after everything that was queued on the
/// device before the operation was posted.
struct nccl_task {
  explicit nccl_task(const cuda_backend& gpu) : ready(gpu), done(gpu) {}

  std::deque<std::function<void()>> stages;  // each makes one NCCL call, or queues kernels and copies
  cuda_event ready, done;
  bool may_start = false;  // the ranks have agreed
  bool is_queued = false;  // all of it is on the stream
  std::atomic<bool> is_over = false;
};

/// The use of the memory of its operands, from which other threads may allocate.
class nccl_use : public queue_use {
 public:
  explicit nccl_use(std::weak_ptr<const nccl_task> task) : task_(std::move(task)) {}
  void close() noexcept override {}
  bool is_over() override {
    const auto task = task_.lock();
    return !task || task->is_over;
  }
  void wait() override {}  // the rank must make calls, and may itself be waiting

 private:
  std::weak_ptr<const nccl_task> task_;
};

/// An NCCL communicator, its stream, and its tasks.
class nccl_channel {
 public:
  /// `where`: the device `gpu` with its allocator.
  nccl_channel(const nccl_functions& nccl, const cuda_backend& gpu, const device& where, int rank, int size);
  nccl_channel(const nccl_channel&) = delete;
  nccl_channel& operator=(const nccl_channel&) = delete;
  [[gnu::cold]] ~nccl_channel();

  /// Starts forming the communicator; every rank must call it.
  [[gnu::cold]] void join(nccl_id id);
  bool is_joined() const { return is_joined_; }
  /// Whether the communicator is formed and its last call is on the stream. Throws comm_error if NCCL reports
  /// an error.
  bool is_settled() const;

  /// Queues a task, whose operation has been posted now, after the previous ones.
  void push(std::shared_ptr<nccl_task> task) { tasks_.push_back(std::move(task)); }

  void advance();

  /// Makes one NCCL call, or several as a group, by f(comm, stream).
  template <class F>
  void call(const char* what, F f) {
    const nccl_result result = f(comm_, queue_.stream);
    nccl_.check(result, what, comm_);
  }
  CUstream stream() const { return queue_.stream; }
  void copy(void* to, const void* from, std::size_t bytes);
  /// Memory for one task at a time; the order of the stream separates tasks. Smaller memory of earlier calls
  /// is kept, since the stream may still use it.
  char* scratch(std::size_t bytes);

  /// Ends all work in progress, also on the device.
  [[gnu::cold]] void abort() noexcept;

 private:
  /// Returns false if there is more to do later.
  bool queue_up(nccl_task& task);

  /// Frees the communicator. Ranks that end together wait briefly for each other.
  [[gnu::cold]] void leave() noexcept;

  const nccl_functions& nccl_;
  const cuda_functions& driver_;
  const device where_;
  cuda_queue queue_;
  int rank_, size_;
  nccl_functions::comm comm_ = nullptr;
  bool is_joined_ = false;
  bool has_begun_ = false;  // the first task that is not queued
  std::deque<std::shared_ptr<nccl_task>> tasks_;
  std::vector<buffer> scratch_;
  std::size_t scratch_bytes_ = 0;  // of the last one
};

}  // namespace weft::gpu

#ifndef WEFT_COMPILED
#include <weft/gpu/impl/nccl_channel.ipp>
#endif
