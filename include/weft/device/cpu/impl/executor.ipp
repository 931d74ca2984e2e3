// SPDX-License-Identifier: MIT
// Definitions of <weft/device/cpu/executor.hpp>.
#pragma once

#include <weft/base/error.hpp>
#include <weft/base/poison.hpp>
#include <weft/device/cpu/executor.hpp>

#if WEFT_WITH_TBB
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#endif

namespace weft {

WEFT_DEFINE void* scratch_memory::get(std::size_t bytes) {
  if (bytes > bytes_) {
    free();
    data_ = ::operator new(bytes + bytes / 2, alignment);
    bytes_ = bytes + bytes / 2;
  }
  detail::poison(data_, bytes_);
  detail::unpoison(data_, bytes);
  return data_;
}

WEFT_DEFINE void scratch_memory::free() {
  detail::unpoison(data_, bytes_);
  ::operator delete(data_, alignment);
  data_ = nullptr;
  bytes_ = 0;
}

#if WEFT_WITH_TBB
WEFT_DEFINE int hardware_threads() { return tbb::info::default_concurrency(); }

struct executor::arena : tbb::task_arena {  // starts nothing before its first use
  using tbb::task_arena::task_arena;
};
#else
WEFT_DEFINE int hardware_threads() { return 1; }

struct executor::arena {};
#endif

WEFT_DEFINE executor::executor(int threads) : threads_(threads > 0 ? threads : hardware_threads()) {
  if (threads < 0) refuse<value_error>({"weft: cpu: ", threads, " threads: expected 0 or more"});
#if WEFT_WITH_TBB
  arena_ = new arena(threads_);
#else
  threads_ = 1;
#endif
}

WEFT_DEFINE executor::~executor() { delete arena_; }

WEFT_DEFINE void executor::run(index_t tasks, bool parallel, task_function f, const void* body) {
  if (threads_ == 1 || tasks <= 1 || !parallel) {
    for (index_t i = 0; i < tasks; ++i) f(body, i, own_scratch());
    return;
  }
#if WEFT_WITH_TBB
  arena_->execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<index_t>(0, tasks, 1),
        [&](const tbb::blocked_range<index_t>& range) {
          for (index_t i = range.begin(); i < range.end(); ++i) f(body, i, own_scratch());
        },
        tbb::simple_partitioner{});
  });
#endif
}

WEFT_DEFINE scratch_memory& executor::own_scratch() {
  static thread_local scratch_memory scratch;
  return scratch;
}

}  // namespace weft
