// SPDX-License-Identifier: MIT
// Definitions of <weft/gpu/cuda_pages.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/gpu/cuda_pages.hpp>

namespace weft {
namespace gpu {

WEFT_DEFINE cuda_pages::cuda_pages(const cuda_functions& driver, const cuda_queue& queue)
    : driver_(driver), queue_(queue) {
  kind_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind_.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  kind_.location.id = queue_.device;
  std::size_t unit = 0;
  driver_.check(driver_.granularity(&unit, &kind_, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                "cuMemGetAllocationGranularity");
  constexpr std::size_t least = std::size_t{20} << 20;  // fewer calls than with the driver's 2 MiB
  page_ = (least + unit - 1) / unit * unit;
  driver_.check(driver_.device_memory(&capacity_, queue_.device), "cuDeviceTotalMem");
  access_.push_back(access_of(queue_.device));
  int devices = 0;
  driver_.check(driver_.device_count(&devices), "cuDeviceGetCount");
  for (int i = 0; i < devices; ++i) {
    CUdevice device = 0;
    driver_.check(driver_.device_get(&device, i), "cuDeviceGet");
    int can = 0;
    if (device == queue_.device ||
        driver_.attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device) == 0)
      continue;
    driver_.check(driver_.can_access(&can, device, queue_.device), "cuDeviceCanAccessPeer");
    if (can) access_.push_back(access_of(device));
  }
}

WEFT_DEFINE CUmemAccessDesc cuda_pages::access_of(CUdevice device) const {
  CUmemAccessDesc access{};
  access.location = kind_.location;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return access;
}

WEFT_DEFINE void* cuda_pages::reserve(std::size_t bytes) {
  const auto current = queue_.use();
  CUdeviceptr at = 0;
  driver_.check(driver_.reserve_addresses(&at, bytes, 0, 0, 0), "cuMemAddressReserve");
  return reinterpret_cast<void*>(at);
}

WEFT_DEFINE void cuda_pages::unreserve(void* at, std::size_t bytes) noexcept {
  try {
    const auto current = queue_.use();
    driver_.free_addresses(reinterpret_cast<CUdeviceptr>(at), bytes);
  } catch (const device_error&) {  // the context no longer exists, nor do the addresses
  }
}

WEFT_DEFINE void cuda_pages::map(void* at, std::size_t bytes) {
  const auto current = queue_.use();
  const auto begin = reinterpret_cast<CUdeviceptr>(at);
  std::size_t mapped = 0;
  try {
    for (; mapped < bytes; mapped += page_) map_page(begin + mapped);
    CUresult result = driver_.set_access(begin, bytes, access_.data(), access_.size());
    if (result != CUDA_SUCCESS && access_.size() > 1)  // without the other devices
      result = driver_.set_access(begin, bytes, access_.data(), 1);
    driver_.check(result, "cuMemSetAccess");
  } catch (const device_error&) {
    unmap_pages(begin, mapped);
    throw;
  }
}

WEFT_DEFINE void cuda_pages::map_page(CUdeviceptr at) {
  CUmemGenericAllocationHandle memory = 0;
  const CUresult created = driver_.create_memory(&memory, page_, &kind_, 0);
  if (created == CUDA_ERROR_OUT_OF_MEMORY)
    throw out_of_memory_error("weft: cuda: out of memory: could not map " + std::to_string(page_) + " bytes");
  driver_.check(created, "cuMemCreate");
  const CUresult mapped = driver_.map_memory(at, page_, 0, memory, 0);
  driver_.release_memory(memory);  // it lasts as long as it is mapped
  driver_.check(mapped, "cuMemMap");
}

WEFT_DEFINE void cuda_pages::unmap(void* at, std::size_t bytes) noexcept {
  try {
    const auto current = queue_.use();
    driver_.wait_stream(queue_.stream);  // the driver does not wait, as it does before it frees memory
    unmap_pages(reinterpret_cast<CUdeviceptr>(at), bytes);
  } catch (const device_error&) {  // the context no longer exists, nor does the memory
  }
}

}  // namespace gpu
}  // namespace weft
