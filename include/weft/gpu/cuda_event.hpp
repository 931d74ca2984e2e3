// SPDX-License-Identifier: MIT
// Events of the CUDA driver, and the caller's own streams that use memory of a device.
//
//   where.memory().record_use(t.data(), std::make_shared<gpu::cuda_stream_use>(gpu, stream));
#pragma once

#include <weft/gpu/cuda.hpp>

namespace weft::gpu {

/// An event of the driver. All but the destructor require the device's context to be current.
class cuda_event {
 public:
  /// Keeps a reference to the device.
  explicit cuda_event(const cuda_backend& gpu);
  cuda_event(const cuda_event&) = delete;
  cuda_event& operator=(const cuda_event&) = delete;
  ~cuda_event();

  void record(CUstream stream) { driver_.check(driver_.record_event(event_, stream), "cuEventRecord"); }
  void hold_back(CUstream stream) const {
    driver_.check(driver_.await_event(stream, event_, 0), "cuStreamWaitEvent");
  }
  bool is_over() const;
  void wait() const { driver_.check(driver_.wait_event(event_), "cuEventSynchronize"); }

 private:
  const cuda_functions& driver_;
  const cuda_queue& queue_;  // of the device
  CUevent event_ = nullptr;
};

/// The use of memory by a stream other than that of its device: PyTorch's record_stream. It ends with the
/// work queued on that stream when the memory is freed.
class cuda_stream_use : public queue_use {
 public:
  /// Keeps a reference to the device; the stream must belong to its context.
  cuda_stream_use(const cuda_backend& gpu, CUstream stream);

  void close() noexcept override;
  bool is_over() override;
  void wait() override;

 private:
  const cuda_backend& gpu_;
  CUstream stream_;
  bool is_closed_ = false;
  std::optional<cuda_event> end_;  // at that time
};

}  // namespace weft::gpu

#ifndef WEFT_COMPILED
#include <weft/gpu/impl/cuda_event.ipp>
#endif
