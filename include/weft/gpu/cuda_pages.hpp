// SPDX-License-Identifier: MIT
// Memory of NVIDIA GPUs that is mapped page by page to reserved addresses, for expandable segments.
#pragma once

#include <vector>

#include <weft/device/raw_memory.hpp>
#include <weft/gpu/cuda_driver.hpp>

namespace weft::gpu {

/// The pages of one device, which other devices may access if they can, because ranks that are threads of one
/// process exchange pointers (NCCL).
class cuda_pages : public mapped_memory {
 public:
  /// Keeps references to both. Requires the device's context to be current.
  [[gnu::cold]] cuda_pages(const cuda_functions& driver, const cuda_queue& queue);

  std::size_t page_bytes() const override { return page_; }
  std::size_t capacity() const override { return capacity_; }
  [[gnu::cold]] void* reserve(std::size_t bytes) override;
  [[gnu::cold]] void unreserve(void* at, std::size_t bytes) noexcept override;
  [[gnu::cold]] void map(void* at, std::size_t bytes) override;
  [[gnu::cold]] void unmap(void* at, std::size_t bytes) noexcept override;

 private:
  CUmemAccessDesc access_of(CUdevice device) const;
  void map_page(CUdeviceptr at);
  void unmap_pages(CUdeviceptr at, std::size_t bytes) noexcept {
    for (std::size_t i = 0; i < bytes; i += page_) driver_.unmap_memory(at + i, page_);
  }

  const cuda_functions& driver_;
  const cuda_queue& queue_;
  CUmemAllocationProp kind_{};
  std::vector<CUmemAccessDesc> access_;  // of this device, then of others
  std::size_t page_ = 0, capacity_ = 0;
};

}  // namespace weft::gpu

#ifndef WEFT_COMPILED
#include <weft/gpu/impl/cuda_pages.ipp>
#endif
