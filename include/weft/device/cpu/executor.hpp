// SPDX-License-Identifier: MIT
// Parallel tasks on the cores of one CPU, in a separate oneTBB arena; on one thread if TBB is off.
//
// Nothing is started before the first parallel call, OpenMP is not used, and other users of TBB in the
// process keep their threads. The assignment of tasks to workers is not fixed: results must not depend on it,
// and tasks must not write to the same memory. Several threads of a program may use one executor
// concurrently.
//
//   executor threads(2);
//   threads.parallel_for(8, [](index_t task, scratch_memory& scratch) { ... });
#pragma once

#include <cstddef>
#include <new>

#include <weft/base/config.hpp>

namespace weft {

/// Scratch memory of a thread, for use within a task; it grows as needed and is kept.
class scratch_memory {
 public:
  scratch_memory() = default;
  scratch_memory(const scratch_memory&) = delete;
  scratch_memory& operator=(const scratch_memory&) = delete;
  ~scratch_memory() { free(); }

  /// At least `bytes` bytes, aligned to 64; previous content is lost.
  void* get(std::size_t bytes);

 private:
  void free();

  static constexpr std::align_val_t alignment{64};
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Number of cores available to this process; 1 if TBB is off.
int hardware_threads();

/// Runs tasks on a fixed number of threads.
class executor {
 public:
  /// Uses `threads` threads including the caller; 0 means one per core. Throws value_error if it is negative.
  explicit executor(int threads = 0);
  executor(const executor&) = delete;
  executor& operator=(const executor&) = delete;
  ~executor();

  int threads() const { return threads_; }

  /// Calls f(task, scratch) for all tasks in [0, tasks) and returns when they are done; runs them on the
  /// calling thread if `parallel` is false.
  template <class F>
  void parallel_for(index_t tasks, const F& f, bool parallel = true) {
    run(tasks, parallel, [](const void* body, index_t task, scratch_memory& scratch) {
      (*static_cast<const F*>(body))(task, scratch);
    }, &f);
  }

 private:
  using task_function = void (*)(const void* body, index_t task, scratch_memory& scratch);

  /// Not a template on the body, so that TBB's templates are compiled once and no header needs TBB's headers.
  void run(index_t tasks, bool parallel, task_function f, const void* body);

  /// The thread's scratch memory; a task runs on one thread from beginning to end.
  static scratch_memory& own_scratch();

  int threads_;
  struct arena;  // of oneTBB
  arena* arena_ = nullptr;
};

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/device/cpu/impl/executor.ipp>
#endif
