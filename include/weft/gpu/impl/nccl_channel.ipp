// SPDX-License-Identifier: MIT
// Definitions of <weft/gpu/nccl_channel.hpp>.
#pragma once

#include <thread>

#include <weft/base/config.hpp>
#include <weft/gpu/nccl_channel.hpp>

namespace weft {
namespace gpu {

WEFT_DEFINE nccl_channel::nccl_channel(const nccl_functions& nccl, const cuda_backend& gpu,
                                       const device& where, int rank, int size)
    : nccl_(nccl),
      driver_(gpu.driver()),
      where_(where),
      queue_(driver_, gpu.queue().device),
      rank_(rank),
      size_(size) {}

WEFT_DEFINE nccl_channel::~nccl_channel() {
  leave();
  if (scratch_.empty()) return;
  try {
    const auto current = queue_.use();
    driver_.check(driver_.wait_stream(queue_.stream), "cuStreamSynchronize");  // others get its memory now
  } catch (const device_error&) {  // the device has failed: nothing runs there any more
  }
}

WEFT_DEFINE void nccl_channel::join(nccl_id id) {
  const auto current = queue_.use();
  nccl_config config;
  nccl_.check(nccl_.join(&comm_, size_, id, rank_, &config), "ncclCommInitRankConfig", nullptr);
  is_joined_ = true;
}

WEFT_DEFINE bool nccl_channel::is_settled() const {
  if (!comm_) return false;
  nccl_result state = nccl_result::success;
  nccl_.check(nccl_.state(comm_, &state), "ncclCommGetAsyncError", comm_);
  nccl_.check(state, "the communicator", comm_);
  return state == nccl_result::success;
}

WEFT_DEFINE void nccl_channel::advance() {
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

WEFT_DEFINE void nccl_channel::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0 || to == from) return;
  driver_.check(driver_.within_device(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from),
                                      bytes, queue_.stream),
                "cuMemcpyDtoDAsync");
}

WEFT_DEFINE char* nccl_channel::scratch(std::size_t bytes) {
  if (scratch_bytes_ < bytes) {
    const std::size_t larger = std::max(bytes, 2 * scratch_bytes_);
    scratch_.push_back(where_.allocate(larger, "scratch memory of NCCL operations"));
    scratch_bytes_ = larger;
  }
  return static_cast<char*>(scratch_.back().data());
}

WEFT_DEFINE void nccl_channel::abort() noexcept {
  tasks_.clear();
  if (!comm_) return;
  try {
    const auto current = queue_.use();
    nccl_.abort(std::exchange(comm_, nullptr));
  } catch (const error&) {  // the context no longer exists
  }
}

WEFT_DEFINE bool nccl_channel::queue_up(nccl_task& task) {
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

WEFT_DEFINE void nccl_channel::leave() noexcept {
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

}  // namespace gpu
}  // namespace weft
