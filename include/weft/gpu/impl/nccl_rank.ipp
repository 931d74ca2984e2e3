// SPDX-License-Identifier: MIT
// Definitions of <weft/gpu/nccl_rank.hpp>.
#pragma once

#include <thread>

#include <weft/base/config.hpp>
#include <weft/base/deadline.hpp>
#include <weft/gpu/nccl_rank.hpp>

namespace weft {
namespace gpu {

WEFT_DEFINE void nccl_rank::progress() {
  if (failure_) return;
  try {
    if (++polls_ % 64 == 0)
      if (const auto failed = host->failure()) std::rethrow_exception(failed);
    for (const auto& o : under_way_) o->advance();
    for (nccl_part* part : parts_) part->advance();
    std::erase_if(under_way_, [](const auto& o) { return o->is_over(); });
  } catch (...) { fail(std::current_exception()); }
}

WEFT_DEFINE bool nccl_rank::is_needed_beside(const nccl_operation& one) const {
  return std::any_of(under_way_.begin(), under_way_.end(),
                     [&](const auto& o) { return o.get() != &one && !o->is_queued(); });
}

WEFT_DEFINE void nccl_rank::fail(std::exception_ptr why) {
  if (failure_) return;
  failure_ = why;
  if (!host->failure()) {
    try {
      std::rethrow_exception(why);
    } catch (const std::exception& e) { host->abort(e.what()); }
  }
  for (nccl_part* part : parts_) part->abort();
  under_way_.clear();
}

WEFT_DEFINE cuda_backend& nccl_rank::backend_of(const device& on) {
  if (auto* const gpu = dynamic_cast<cuda_backend*>(&*on)) return *gpu;
  throw usage_error(std::string("weft: nccl: the device is ") + on->name() + ", not a CUDA device");
}

WEFT_DEFINE void nccl_operation::wait(std::chrono::milliseconds limit) {
  const auto deadline = deadline_after(limit);
  for (int idle = 0; !poll(); ++idle) {
    const work* const host = host_work();
    const bool late = idle % 64 == 0 && std::chrono::steady_clock::now() > deadline;
    try {
      if (host && (late || !rank_->is_needed_beside(*this)))
        host->wait(late ? std::chrono::milliseconds(0) : limit);
      else if (late)
        throw timeout_error("weft: rank " + std::to_string(rank_->host->rank()) + " waited " +
                            std::to_string(limit.count()) + " ms in " + doing() +
                            "; all ranks are there, but the data is not: NCCL on " +
                            rank_->gpu.description());
    } catch (...) { rank_->fail(std::current_exception()); }
    if (idle > 1000) std::this_thread::yield();
  }
}

}  // namespace gpu
}  // namespace weft
