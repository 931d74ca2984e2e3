// SPDX-License-Identifier: MIT
// Tasks on the cores of one CPU: an oneTBB arena of its own, or one thread where TBB is off.
//
// Nothing starts before the first parallel call, OpenMP is never touched, and other users of TBB
// in the process keep their threads. Which task runs on which worker is not fixed; results must
// not depend on it, and a task may only write what is its own. Several threads of a program may
// call one executor at once.
//
//   executor threads(2);
//   threads.parallel_for(8, [](index_t task, scratch_memory& scratch) { ... });
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include <weft/base/config.hpp>

#if WEFT_WITH_TBB
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#endif

namespace weft {

/// Memory that one worker may use within a task; it grows and stays.
class scratch_memory {
 public:
  scratch_memory() = default;
  scratch_memory(scratch_memory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  scratch_memory& operator=(scratch_memory&&) = delete;
  ~scratch_memory() { ::operator delete(data_, alignment); }

  /// At least `bytes` of memory, aligned to a cache line; what it held is lost.
  void* get(std::size_t bytes) {
    if (bytes > bytes_) {
      ::operator delete(data_, alignment);
      data_ = nullptr;
      bytes_ = 0;
      data_ = ::operator new(bytes + bytes / 2, alignment);
      bytes_ = bytes + bytes / 2;
    }
    return data_;
  }

 private:
  static constexpr std::align_val_t alignment{64};
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

inline int hardware_threads() {
#if WEFT_WITH_TBB
  return tbb::info::default_concurrency();
#else
  return 1;
#endif
}

class executor {
 public:
  /// `threads` workers; 0 means one for each core.
  explicit executor(int threads = 0) : threads_(threads > 0 ? threads : hardware_threads()) {
#if !WEFT_WITH_TBB
    threads_ = 1;
#endif
    free_.reserve(16);
  }

  int threads() const { return threads_; }

  /// Calls f(task, scratch) for every task in [0, tasks), and returns when all are done. Work that
  /// is not worth it is not done in `parallel`.
  template <class F>
  void parallel_for(index_t tasks, const F& f, bool parallel = true) {
    run(tasks, parallel, [](const void* body, index_t task, scratch_memory& scratch) {
      (*static_cast<const F*>(body))(task, scratch);
    }, &f);
  }

 private:
  using task_function = void (*)(const void* body, index_t task, scratch_memory& scratch);

  /// The scratch memory of one loop, one for each worker; loops that run at once have their own.
  class loop_scratch {
   public:
    explicit loop_scratch(executor& of) : of_(of) {
      const std::lock_guard lock(of_.mutex_);
      if (of_.free_.empty()) {
        workers_ = std::make_unique<std::vector<scratch_memory>>(static_cast<std::size_t>(of_.threads_));
      } else {
        workers_ = std::move(of_.free_.back());
        of_.free_.pop_back();
      }
    }
    loop_scratch(const loop_scratch&) = delete;
    loop_scratch& operator=(const loop_scratch&) = delete;
    ~loop_scratch() {
      const std::lock_guard lock(of_.mutex_);
      of_.free_.push_back(std::move(workers_));
    }
    scratch_memory& operator[](std::size_t worker) const { return (*workers_)[worker]; }

   private:
    executor& of_;
    std::unique_ptr<std::vector<scratch_memory>> workers_;
  };

  /// One function for all bodies, so that TBB's templates are compiled once.
  void run(index_t tasks, bool parallel, task_function f, const void* body) {
    const loop_scratch scratch(*this);
    if (threads_ == 1 || tasks <= 1 || !parallel) {
      for (index_t i = 0; i < tasks; ++i) f(body, i, scratch[0]);
      return;
    }
#if WEFT_WITH_TBB
    arena().execute([&] {
      tbb::parallel_for(
          tbb::blocked_range<index_t>(0, tasks, 1),
          [&](const tbb::blocked_range<index_t>& range) {
            const auto worker = static_cast<std::size_t>(tbb::this_task_arena::current_thread_index());
            for (index_t i = range.begin(); i < range.end(); ++i) f(body, i, scratch[worker]);
          },
          tbb::simple_partitioner{});
    });
#endif
  }

  int threads_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<std::vector<scratch_memory>>> free_;
#if WEFT_WITH_TBB
  tbb::task_arena& arena() {
    const std::lock_guard lock(mutex_);
    if (!arena_) arena_ = std::make_unique<tbb::task_arena>(threads_);
    return *arena_;
  }
  std::unique_ptr<tbb::task_arena> arena_;
#endif
};

}  // namespace weft
