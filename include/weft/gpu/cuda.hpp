// SPDX-License-Identifier: MIT
// NVIDIA GPUs through the CUDA driver. Driver, NVRTC and cuBLASLt are opened at run time: programs start
// without them, and no nvcc is needed to build them.
//
//   device gpu(std::make_shared<gpu::cuda_backend>());
//   policy<on<cuda>, precision::bf16>                       // the GPU of this rank
#pragma once

#include <cuda.h>

#include <optional>

#include <weft/gpu/cublaslt.hpp>
#include <weft/gpu/nvrtc.hpp>
#include <weft/gpu/jit_backend.hpp>
#include <weft/gpu/tensor_core_words.hpp>

namespace weft::gpu {

/// The driver functions in use. Names of newer versions are defined by macros.
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
  /// Its compute capability: "9.0" with ".".
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

  /// During its lifetime a context is current on this thread; then again that of the caller, who may use
  /// another device, or CUDA in other ways.
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

/// One NVIDIA GPU, with the CUDA driver as runtime, NVRTC as compiler and cuBLASLt for products.
class cuda_backend : public jit_backend {
 public:
  /// `ordinal`: its number for the driver. Throws device_error if there is no such device, or no driver,
  /// NVRTC or cuBLASLt.
  [[gnu::cold]] explicit cuda_backend(int ordinal = 0);
  cuda_backend(const cuda_backend&) = delete;
  cuda_backend& operator=(const cuda_backend&) = delete;
  [[gnu::cold]] ~cuda_backend() override;

  const char* name() const override { return "cuda"; }
  /// The queue of kernels and copies, for events.
  const cuda_queue& queue() const { return queue_; }
  const cuda_functions& driver() const { return driver_; }
  [[gnu::cold]] std::string description() const override;

  void* allocate(std::size_t bytes) override;
  void deallocate(void* memory, std::size_t) noexcept override;
  [[gnu::cold]] device_room room() const override;
  mapped_memory* mapped() override { return pages_.get(); }
  void fill_zero(void* memory, std::size_t bytes) override;

  /// Work is recorded as a CUDA graph.
  bool records() const override { return true; }
  void begin_recording() override;
  std::unique_ptr<recorded_work> end_recording() override;
  void abandon_recording() noexcept override;

  /// Loops over batch dims before the last one; products that cuBLASLt does not support use the generic
  /// kernel.
  void multiply(const native_code& code, const strided& a, const strided& b, const strided& c) override;
  /// By cuBLASLt's epilogues.
  bool multiply_with(const strided& a, const strided& b, const strided& c,
                     const product_epilogue& with) override;
  void allow_tf32(bool on) override { products_->allow_tf32(on); }

 protected:
  const char* dialect() const override { return cuda_dialect; }
  bool reads_pointers() const override { return true; }
  group_limits limits() const override { return limits_; }

  [[gnu::cold]] std::shared_ptr<compiled_kernel> compile(const std::string& text) override;
  [[gnu::cold]] std::string code_identity() const override;
  [[gnu::cold]] std::vector<char> code_of(compiled_kernel& kernel) const override;
  [[gnu::cold]] std::shared_ptr<compiled_kernel> load(std::span<const char> code) override;

  void run(compiled_kernel& kernel, const std::vector<void*>& pointers, parameters& p,
           index_t groups) override;

  void read(void* to, const void* from, std::size_t bytes) override;
  void write(void* to, const void* from, std::size_t bytes) override;
  [[gnu::cold]] void* allocate_staging(std::size_t bytes) override;
  [[gnu::cold]] void free_staging(void* memory) noexcept override;

  void wait() override;

 private:
  class recorded_graph;
  /// The queue of this thread's calls.
  CUstream stream() const { return is_recording() ? capturing_->stream : queue_.stream; }
  /// What was captured, which is destroyed if `keeps` is false.
  CUgraph captured(bool keeps);
  void end() noexcept {
    release();
    products_.reset();
    deallocate(workspace_, cublaslt::workspace_bytes);
  }

  struct cuda_kernel : compiled_kernel {
    explicit cuda_kernel(const cuda_functions& functions) : cuda(functions) {}
    ~cuda_kernel() override {
      if (module) cuda.unload_module(module);
    }
    const cuda_functions& cuda;
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    std::vector<char> code;  // until it is kept
    index_t may_share = 0;   // bytes of group memory that the driver was told of
  };

  [[gnu::cold]] std::string architecture() const { return "sm_" + driver_.capability(queue_.device, ""); }
  static CUdeviceptr address(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }
  /// The last `kept` dims of `t` at position `i` of the others.
  static strided inner(strided t, int kept, index_t i);

  cuda_functions driver_;
  nvrtc_compiler compiler_;
  int ordinal_;
  cuda_queue queue_;
  std::optional<cuda_queue> capturing_;  // on which work is recorded
  std::optional<cublaslt> products_;
  void* workspace_;
  group_limits limits_;
  std::unique_ptr<mapped_memory> pages_;  // null if the device cannot map memory
};

}  // namespace weft::gpu

namespace weft {

/// NVIDIA GPUs, for on<cuda>.
struct cuda {
  static constexpr auto name = "cuda";
  static std::vector<device_facts> list() { return gpu::cuda_functions().devices(); }
  static std::shared_ptr<backend> open(int number, const device_options&) {
    return std::make_shared<gpu::cuda_backend>(number);
  }
};

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/gpu/impl/cuda.ipp>
#endif
