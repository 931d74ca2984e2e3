// SPDX-License-Identifier: MIT
// Definitions of <weft/device/cpu/executor.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/device/cpu/executor.hpp>

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

WEFT_DEFINE executor::executor(int threads) : threads_(threads > 0 ? threads : hardware_threads()) {
  if (threads < 0) refuse<value_error>({"weft: cpu: ", threads, " threads"});
#if !WEFT_WITH_TBB
  threads_ = 1;
#endif
}

WEFT_DEFINE void executor::run(index_t tasks, bool parallel, task_function f, const void* body) {
  if (threads_ == 1 || tasks <= 1 || !parallel) {
    for (index_t i = 0; i < tasks; ++i) f(body, i, own_scratch());
    return;
  }
#if WEFT_WITH_TBB
  arena_.execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<index_t>(0, tasks, 1),
        [&](const tbb::blocked_range<index_t>& range) {
          for (index_t i = range.begin(); i < range.end(); ++i) f(body, i, own_scratch());
        },
        tbb::simple_partitioner{});
  });
#endif
}

}  // namespace weft
