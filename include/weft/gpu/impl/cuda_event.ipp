// SPDX-License-Identifier: MIT
// Definitions of <weft/gpu/cuda_event.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/gpu/cuda_event.hpp>

namespace weft {
namespace gpu {

WEFT_DEFINE cuda_event::cuda_event(const cuda_backend& gpu) : driver_(gpu.driver()), queue_(gpu.queue()) {
  driver_.check(driver_.create_event(&event_, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
}

WEFT_DEFINE cuda_event::~cuda_event() {
  try {
    const auto current = queue_.use();
    driver_.destroy_event(event_);
  } catch (const device_error&) {  // the context no longer exists, nor does the event
  }
}

WEFT_DEFINE bool cuda_event::is_over() const {
  const CUresult result = driver_.query_event(event_);
  if (result != CUDA_ERROR_NOT_READY) driver_.check(result, "cuEventQuery");
  return result == CUDA_SUCCESS;
}

WEFT_DEFINE cuda_stream_use::cuda_stream_use(const cuda_backend& gpu, CUstream stream)
    : gpu_(gpu), stream_(stream) {}

WEFT_DEFINE void cuda_stream_use::close() noexcept {
  is_closed_ = true;
  try {
    const auto current = gpu_.queue().use();
    end_.emplace(gpu_).record(stream_);
  } catch (const device_error&) { end_.reset(); }  // nothing runs there any more
}

WEFT_DEFINE bool cuda_stream_use::is_over() {
  if (!end_) return is_closed_;
  const auto current = gpu_.queue().use();
  return end_->is_over();
}

WEFT_DEFINE void cuda_stream_use::wait() {
  if (!end_) return;
  const auto current = gpu_.queue().use();
  end_->wait();
}

}  // namespace gpu
}  // namespace weft
