// SPDX-License-Identifier: MIT
// The CUDA driver, opened at run time, and its queue for one device.
#pragma once

#include <cuda.h>

#include <string>
#include <vector>

#include <weft/device/kind.hpp>
#include <weft/gpu/library.hpp>

namespace weft::gpu {

/// The file names of a CUDA library such as "nvrtc", the newest version first: from CUDA 12 on, the versions
/// that the driver supports, or all without a driver. Throws device_error if it supports none.
[[gnu::cold]] std::vector<std::string> cuda_libraries(const std::string& name);

/// The driver functions in use. The names of newer versions are defined by macros.
struct cuda_functions {
  library from{{"libcuda.so.1", "libcuda.so"}};
#define WEFT_NAME(name) #name
#define WEFT_CUDA(member, name) decltype(&::name) member = from.function<decltype(&::name)>(WEFT_NAME(name))
  WEFT_CUDA(init, cuInit);
  WEFT_CUDA(device_count, cuDeviceGetCount);
  WEFT_CUDA(device_get, cuDeviceGet);
  WEFT_CUDA(device_memory, cuDeviceTotalMem);
  WEFT_CUDA(memory_info, cuMemGetInfo);
  WEFT_CUDA(device_name, cuDeviceGetName);
  WEFT_CUDA(device_attribute, cuDeviceGetAttribute);
  WEFT_CUDA(can_access, cuDeviceCanAccessPeer);
  WEFT_CUDA(driver_version, cuDriverGetVersion);
  WEFT_CUDA(retain_context, cuDevicePrimaryCtxRetain);
  WEFT_CUDA(release_context, cuDevicePrimaryCtxRelease);
  WEFT_CUDA(get_context, cuCtxGetCurrent);
  WEFT_CUDA(set_context, cuCtxSetCurrent);
  WEFT_CUDA(create_stream, cuStreamCreate);
  WEFT_CUDA(destroy_stream, cuStreamDestroy);
  WEFT_CUDA(wait_stream, cuStreamSynchronize);
  WEFT_CUDA(allocate, cuMemAlloc);
  WEFT_CUDA(deallocate, cuMemFree);
  WEFT_CUDA(granularity, cuMemGetAllocationGranularity);
  WEFT_CUDA(reserve_addresses, cuMemAddressReserve);
  WEFT_CUDA(free_addresses, cuMemAddressFree);
  WEFT_CUDA(create_memory, cuMemCreate);
  WEFT_CUDA(release_memory, cuMemRelease);
  WEFT_CUDA(map_memory, cuMemMap);
  WEFT_CUDA(unmap_memory, cuMemUnmap);
  WEFT_CUDA(set_access, cuMemSetAccess);
  WEFT_CUDA(allocate_host, cuMemHostAlloc);
  WEFT_CUDA(deallocate_host, cuMemFreeHost);
  WEFT_CUDA(to_device, cuMemcpyHtoDAsync);
  WEFT_CUDA(to_host, cuMemcpyDtoHAsync);
  WEFT_CUDA(within_device, cuMemcpyDtoDAsync);
  WEFT_CUDA(fill, cuMemsetD8Async);
  WEFT_CUDA(create_event, cuEventCreate);
  WEFT_CUDA(destroy_event, cuEventDestroy);
  WEFT_CUDA(record_event, cuEventRecord);
  WEFT_CUDA(query_event, cuEventQuery);
  WEFT_CUDA(wait_event, cuEventSynchronize);
  WEFT_CUDA(await_event, cuStreamWaitEvent);
  WEFT_CUDA(load_module, cuModuleLoadData);
  WEFT_CUDA(unload_module, cuModuleUnload);
  WEFT_CUDA(get_function, cuModuleGetFunction);
  WEFT_CUDA(set_function_attribute, cuFuncSetAttribute);
  WEFT_CUDA(launch, cuLaunchKernel);
  WEFT_CUDA(begin_capture, cuStreamBeginCapture);
  WEFT_CUDA(end_capture, cuStreamEndCapture);
  WEFT_CUDA(make_executable, cuGraphInstantiate);
  WEFT_CUDA(launch_graph, cuGraphLaunch);
  WEFT_CUDA(destroy_graph, cuGraphDestroy);
  WEFT_CUDA(destroy_executable, cuGraphExecDestroy);
  WEFT_CUDA(error_text, cuGetErrorString);
#undef WEFT_CUDA
#undef WEFT_NAME

  void check(CUresult result, const char* what) const {
    if (result != CUDA_SUCCESS) refuse(result, what);
  }

  /// The devices of this machine. Throws device_error if the driver does not work.
  [[gnu::cold]] std::vector<device_facts> devices() const;
  /// The device's compute capability: "9.0" with ".".
  [[gnu::cold]] std::string capability(CUdevice device, const char* between) const;
  int attribute(CUdevice_attribute which, CUdevice device) const {
    int value = 0;
    check(device_attribute(&value, which, device), "cuDeviceGetAttribute");
    return value;
  }

 private:
  [[noreturn, gnu::cold]] void refuse(CUresult result, const char* what) const;
};

/// The primary context of a device, which may be shared with other parts of the process, and a stream in it.
class cuda_queue {
 public:
  [[gnu::cold]] cuda_queue(const cuda_functions& cuda, int ordinal);
  cuda_queue(const cuda_queue&) = delete;
  cuda_queue& operator=(const cuda_queue&) = delete;
  [[gnu::cold]] ~cuda_queue();

  /// Makes a context current on this thread during its lifetime, and then restores that of the caller, who
  /// may use another device, or CUDA in other ways.
  class scope {
   public:
    scope(const cuda_functions& cuda, CUcontext context);
    scope(const scope&) = delete;
    scope& operator=(const scope&) = delete;
    ~scope() {
      if (changed_) cuda_.set_context(before_);
    }

   private:
    const cuda_functions& cuda_;
    CUcontext before_ = nullptr;
    bool changed_ = false;
  };
  scope use() const { return {cuda_, context_}; }

  CUdevice device = 0;
  CUstream stream = nullptr;

 private:
  const cuda_functions& cuda_;
  CUcontext context_ = nullptr;
};

}  // namespace weft::gpu

#ifndef WEFT_COMPILED
#include <weft/gpu/impl/cuda_driver.ipp>
#endif
