// SPDX-License-Identifier: MIT
// The interface of tests to the fake driver, which they find in libcuda.so.1, like weft.
#pragma once

#include <cuda.h>
#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace fake_cuda {

template <class Function>
Function* function(const char* library, const char* name) {
  void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  void* const found = handle ? dlsym(handle, name) : nullptr;
  if (!found) throw std::runtime_error(std::string("not the fake: ") + library);
  return reinterpret_cast<Function*>(found);
}

/// The next `times` calls of `name` return `code` and do nothing.
inline void fail(const char* name, int code, int times) {
  function<void(const char*, int, int)>("libcuda.so.1", "fake_cuda_fail")(name, code, times);
}
/// The number of calls of `name`.
inline long calls(const char* name) {
  return function<long(const char*)>("libcuda.so.1", "fake_cuda_calls")(name);
}
/// Violations of the driver's rules since the last call of this, one per line; above all, calls in a context
/// other than that of their memory, stream or kernel.
inline std::string misuse() { return function<const char*()>("libcuda.so.1", "fake_cuda_misuse")(); }
/// The number of existing contexts, streams, modules, and blocks of device and pinned memory.
inline long held() { return function<long()>("libcuda.so.1", "fake_cuda_held")(); }

/// The devices that may access mapped memory, as a bit set.
inline unsigned access_of(const void* memory) {
  return function<unsigned(const void*)>("libcuda.so.1", "fake_pages_access")(memory);
}
/// The architecture of the compiler's last target.
inline std::string target() { return function<const char*()>("libnvrtc.so.13", "fake_nvrtc_target")(); }

/// The last request for an algorithm, and the answer to give: 0: success, 1: none found, 2: not supported, 3:
/// none found for products with an epilogue.
struct products {
  unsigned schemes, alignment[4], compute;
  long questions, products, descriptors;
  long with_epilogue, added;  // products with an epilogue; with an added matrix other than the result
  int answer;
};
inline products& products_of() {
  return *function<products*()>("libcublasLt.so.13", "fake_cublaslt_products")();
}

/// For ranks over the fake NCCL: makes the next state of the communicator of this device's rank an error;
/// keeps the calls of this device's rank from being launched; the number of launched calls, or groups of
/// calls; the number of existing communicators.
inline void fail_nccl(CUcontext of, int error) {
  function<void(CUcontext, int)>("libnccl.so.2", "fake_nccl_fail")(of, error);
}
inline void stall_nccl(CUcontext of, bool on) {
  function<void(CUcontext, bool)>("libnccl.so.2", "fake_nccl_stall")(of, on);
}
inline long launched_by_nccl() { return function<long()>("libnccl.so.2", "fake_nccl_launched")(); }
inline long held_by_nccl() { return function<long()>("libnccl.so.2", "fake_nccl_held")(); }

}  // namespace fake_cuda
