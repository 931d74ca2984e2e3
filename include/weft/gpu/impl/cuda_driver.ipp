// SPDX-License-Identifier: MIT
// Definitions of <weft/gpu/cuda_driver.hpp>.
#pragma once

#include <algorithm>

#include <weft/base/config.hpp>
#include <weft/gpu/cuda_driver.hpp>

namespace weft {
namespace gpu {

WEFT_DEFINE std::vector<std::string> cuda_libraries(const std::string& name) {
  constexpr int oldest = 12, newest = 13;
  int supported = newest + 1;
  try {
    const library driver{{"libcuda.so.1", "libcuda.so"}};
    int version = 0;
    driver.function<decltype(&::cuDriverGetVersion)>("cuDriverGetVersion")(&version);
    if (version > 0) supported = version / 1000;
  } catch (const device_error&) {
  }
  if (supported < oldest)
    throw device_error("weft: cuda: the driver supports CUDA " + std::to_string(supported) +
                       ", but weft needs " + std::to_string(oldest) + " or newer");
  std::vector<std::string> names;
  const std::string any = "lib" + name + ".so";
  for (int major = std::min(newest, supported); major >= oldest; --major)
    names.push_back(any + "." + std::to_string(major));
  if (supported > newest) names.push_back(any);
  return names;
}

WEFT_DEFINE std::vector<device_facts> cuda_functions::devices() const {
  check(init(0), "cuInit");
  int count = 0;
  check(device_count(&count), "cuDeviceGetCount");
  std::vector<device_facts> all(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    device_facts& d = all[static_cast<std::size_t>(i)];
    CUdevice number = 0;
    check(device_get(&number, i), "cuDeviceGet");
    char text[256]{};
    device_name(text, sizeof text - 1, number);
    d.name = text;
    device_memory(&d.memory_bytes, number);
    d.version = "compute capability " + capability(number, ".");
  }
  return all;
}

WEFT_DEFINE std::string cuda_functions::capability(CUdevice device, const char* between) const {
  return std::to_string(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)) + between +
         std::to_string(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device));
}

WEFT_DEFINE void cuda_functions::refuse(CUresult result, const char* what) const {
  const char* text = nullptr;
  error_text(result, &text);
  throw device_error(std::string("weft: cuda: ") + what + ": " + (text ? text : std::to_string(result)));
}

WEFT_DEFINE cuda_queue::cuda_queue(const cuda_functions& cuda, int ordinal) : cuda_(cuda) {
  cuda_.check(cuda_.init(0), "cuInit");
  int count = 0;
  cuda_.check(cuda_.device_count(&count), "cuDeviceGetCount");
  if (ordinal < 0 || ordinal >= count)
    throw device_error("weft: there is no device cuda:" + std::to_string(ordinal) + ": the driver has " +
                       std::to_string(count));
  cuda_.check(cuda_.device_get(&device, ordinal), "cuDeviceGet");
  cuda_.check(cuda_.retain_context(&context_, device), "cuDevicePrimaryCtxRetain");
  try {
    const scope current = use();
    cuda_.check(cuda_.create_stream(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  } catch (const device_error&) {
    cuda_.release_context(device);
    throw;
  }
}

WEFT_DEFINE cuda_queue::~cuda_queue() {
  CUcontext before = nullptr;
  cuda_.get_context(&before);
  cuda_.set_context(context_);
  cuda_.destroy_stream(stream);
  cuda_.set_context(before);
  cuda_.release_context(device);
}

WEFT_DEFINE cuda_queue::scope::scope(const cuda_functions& cuda, CUcontext context) : cuda_(cuda) {
  cuda_.check(cuda_.get_context(&before_), "cuCtxGetCurrent");
  if (before_ == context) return;
  cuda_.check(cuda_.set_context(context), "cuCtxSetCurrent");
  changed_ = true;
}

}  // namespace gpu
}  // namespace weft
