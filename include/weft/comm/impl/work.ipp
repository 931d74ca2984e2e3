// SPDX-License-Identifier: MIT
// Definitions of <weft/comm/work.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/base/record_function.hpp>
#include <weft/comm/work.hpp>

namespace weft {

WEFT_DEFINE work& work::operator=(work&& other) noexcept {
  work old = std::move(*this);
  state_ = std::move(other.state_);
  limit_ = other.limit_;
  waited_ = std::move(other.waited_);
  recorder_ = std::move(other.recorder_);
  record_ = other.record_;
  return *this;
}

WEFT_DEFINE bool work::is_completed() const {
  const bool over = !state_ || state_->poll();
  if (over) record_end();
  return over;
}

WEFT_DEFINE void work::wait(std::chrono::milliseconds limit) const {
  if (!state_) return record_end();
  if (!state_->poll()) {
    const record_function range("wait for ranks");
    const auto start = std::chrono::steady_clock::now();
    state_->wait(limit);
    if (waited_) *waited_ += (std::chrono::steady_clock::now() - start).count();
  }
  record_end();
  if (const std::exception_ptr e = state_->failure()) std::rethrow_exception(e);
}

}  // namespace weft
