// SPDX-License-Identifier: MIT
// A communicator of NCCL with a stream of its own, and the tasks that are queued on it one after another.
//
// Nothing here blocks: communicators are formed, and calls are made, in NCCL's non-blocking mode. `advance`
// does what can be done now. A call ends before its kernel is on the stream, so that the next one, and the
// event behind it, have to wait until the communicator's state says so.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <weft/gpu/cuda.hpp>
#include <weft/gpu/nccl_library.hpp>

namespace weft::gpu {

/// An event of the driver. Requires the device's context.
class cuda_event {
 public:
  explicit cuda_event(const cuda_functions& driver) : driver_(driver) {
    driver_.check(driver_.create_event(&event_, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  }
  cuda_event(const cuda_event&) = delete;
  cuda_event& operator=(const cuda_event&) = delete;
  ~cuda_event() { driver_.destroy_event(event_); }

  void record(CUstream stream) { driver_.check(driver_.record_event(event_, stream), "cuEventRecord"); }
  void hold_back(CUstream stream) const {
    driver_.check(driver_.await_event(stream, event_, 0), "cuStreamWaitEvent");
  }
  bool is_over() const {
    const CUresult result = driver_.query_event(event_);
    if (result != CUDA_ERROR_NOT_READY) driver_.check(result, "cuEventQuery");
    return result == CUDA_SUCCESS;
  }

 private:
  const cuda_functions& driver_;
  CUevent event_ = nullptr;
};

/// What an operation queues on a channel's stream: stages, after everything that was queued on the device
/// before the operation was posted.
struct nccl_task {
  explicit nccl_task(const cuda_functions& driver) : ready(driver), done(driver) {}

  std::deque<std::function<void()>> stages;  // each makes one call of NCCL, or queues kernels and copies
  cuda_event ready, done;
  bool may_start = false;  // the ranks have agreed
  bool is_queued = false;  // all of it is on the stream
  bool is_over = false;
};

/// A communicator of NCCL, its stream, and its tasks.
class nccl_channel {
 public:
  nccl_channel(const nccl_functions& nccl, const cuda_functions& driver, cuda_backend& gpu, int rank,
               int size)
      : nccl_(nccl),
        driver_(driver),
        gpu_(gpu),
        queue_(driver, gpu.queue().device),
        rank_(rank),
        size_(size) {}
  nccl_channel(const nccl_channel&) = delete;
  nccl_channel& operator=(const nccl_channel&) = delete;
  [[gnu::cold]] ~nccl_channel() {
    leave();
    for (const auto& [memory, bytes] : scratch_) gpu_.deallocate(memory, bytes);
  }

  /// Begins to form the communicator, which every rank must do.
  [[gnu::cold]] void join(nccl_id id) {
    const auto current = queue_.use();
    nccl_config config;
    nccl_.check(nccl_.join(&comm_, size_, id, rank_, &config), "ncclCommInitRankConfig", nullptr);
    is_joined_ = true;
  }
  bool is_joined() const { return is_joined_; }
  /// Whether the communicator is formed and its last call is on the stream. Throws comm_error if NCCL reports
  /// an error.
  bool is_settled() const {
    if (!comm_) return false;
    nccl_result state = nccl_result::success;
    nccl_.check(nccl_.state(comm_, &state), "ncclCommGetAsyncError", comm_);
    nccl_.check(state, "the communicator", comm_);
    return state == nccl_result::success;
  }

  /// Queues a task behind those before, whose operation was posted now.
  void push(std::shared_ptr<nccl_task> task) { tasks_.push_back(std::move(task)); }

  void advance() {
    if (tasks_.empty() || !comm_) return;
    const auto current = queue_.use();
    if (!is_settled()) return;
    for (const auto& task : tasks_) {
      if (!task->is_queued && !queue_up(*task)) break;
    }
    while (!tasks_.empty() && tasks_.front()->is_queued && tasks_.front()->done.is_over()) {
      tasks_.front()->is_over = true;
      tasks_.pop_front();
    }
  }

  /// One call of NCCL by f(comm, stream), or several as a group.
  template <class F>
  void call(const char* what, F f) {
    const nccl_result result = f(comm_, queue_.stream);
    nccl_.check(result, what, comm_);
  }
  CUstream stream() const { return queue_.stream; }
  void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0 || to == from) return;
    driver_.check(driver_.within_device(reinterpret_cast<CUdeviceptr>(to),
                                        reinterpret_cast<CUdeviceptr>(from), bytes, queue_.stream),
                  "cuMemcpyDtoDAsync");
  }
  /// Memory for one task at a time; the order of the stream separates them. What was smaller is kept: the
  /// driver would wait for all streams before it frees it.
  char* scratch(std::size_t bytes) {
    if (scratch_.empty() || scratch_.back().second < bytes) {
      const std::size_t larger = std::max(bytes, scratch_.empty() ? 0 : 2 * scratch_.back().second);
      scratch_.emplace_back(gpu_.allocate(larger), larger);
    }
    return static_cast<char*>(scratch_.back().first);
  }

  /// Ends what is under way, also on the device.
  [[gnu::cold]] void abort() noexcept {
    if (!comm_) return;
    try {
      const auto current = queue_.use();
      nccl_.abort(std::exchange(comm_, nullptr));
    } catch (const error&) {  // the context no longer exists
    }
  }

 private:
  /// False if there is more to do later.
  bool queue_up(nccl_task& task) {
    if (!task.may_start) return false;
    if (!has_begun_) task.ready.hold_back(queue_.stream);
    has_begun_ = true;
    while (!task.stages.empty()) {
      task.stages.front()();
      task.stages.pop_front();
      if (!is_settled()) return false;
    }
    task.done.record(queue_.stream);
    task.is_queued = true;
    has_begun_ = false;
    return true;
  }

  /// Frees the communicator. Ranks that end together wait for each other shortly.
  [[gnu::cold]] void leave() noexcept {
    if (!comm_) return;
    try {
      const auto current = queue_.use();
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);
      while (!is_settled() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
      nccl_.check(nccl_.finalize(comm_), "ncclCommFinalize", comm_);
      while (!is_settled() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
      if (!is_settled()) return abort();
      nccl_.destroy(std::exchange(comm_, nullptr));
    } catch (const error&) { abort(); }
  }

  const nccl_functions& nccl_;
  const cuda_functions& driver_;
  cuda_backend& gpu_;
  cuda_queue queue_;
  int rank_, size_;
  nccl_functions::comm comm_ = nullptr;
  bool is_joined_ = false;
  bool has_begun_ = false;  // the first task that is not queued
  std::deque<std::shared_ptr<nccl_task>> tasks_;
  std::vector<std::pair<void*, std::size_t>> scratch_;
};

}  // namespace weft::gpu
