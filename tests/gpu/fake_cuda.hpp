// SPDX-License-Identifier: MIT
// What a test asks of the fake driver, which it finds in libcuda.so.1 as weft does.
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
/// How often `name` was called.
inline long calls(const char* name) {
  return function<long(const char*)>("libcuda.so.1", "fake_cuda_calls")(name);
}
/// What was done against the driver's rules since the last question, a line each; calls in another context
/// than that of their memory, stream or kernel above all.
inline std::string misuse() { return function<const char*()>("libcuda.so.1", "fake_cuda_misuse")(); }
/// Contexts, streams, modules and blocks of memory of devices and for them that are there.
inline long held() { return function<long()>("libcuda.so.1", "fake_cuda_held")(); }

/// The devices that may access mapped memory, as bits.
inline unsigned access_of(const void* memory) {
  return function<unsigned(const void*)>("libcuda.so.1", "fake_pages_access")(memory);
}
/// For what the compiler was last asked to compile.
inline std::string target() { return function<const char*()>("libnvrtc.so.13", "fake_nvrtc_target")(); }

/// What the last question for an algorithm asked, and what to answer: as asked, 1: none found, 2: not
/// supported, 3: none found for products with an epilogue.
struct products {
  unsigned schemes, alignment[4], compute;
  long questions, products, descriptors;
  long with_epilogue, added;  // products with an epilogue; with a matrix added that is not the result
  int answer;
};
inline products& products_of() {
  return *function<products*()>("libcublasLt.so.13", "fake_cublaslt_products")();
}

/// Among ranks over the fake NCCL: the next state of the communicator of the rank on this device is an error;
/// what this device's rank calls never gets onto its stream; calls, or groups of them, that got there;
/// communicators that are there.
inline void fail_nccl(CUcontext of, int error) {
  function<void(CUcontext, int)>("libnccl.so.2", "fake_nccl_fail")(of, error);
}
inline void stall_nccl(CUcontext of, bool on) {
  function<void(CUcontext, bool)>("libnccl.so.2", "fake_nccl_stall")(of, on);
}
inline long launched_by_nccl() { return function<long()>("libnccl.so.2", "fake_nccl_launched")(); }
inline long held_by_nccl() { return function<long()>("libnccl.so.2", "fake_nccl_held")(); }

}  // namespace fake_cuda
