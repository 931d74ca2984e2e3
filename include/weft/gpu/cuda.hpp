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
  WEFT_CUDA(to_device, cuMemcpyHtoDAsync);
  WEFT_CUDA(to_host, cuMemcpyDtoHAsync);
  WEFT_CUDA(within_device, cuMemcpyDtoDAsync);
  WEFT_CUDA(fill, cuMemsetD8Async);
  WEFT_CUDA(create_event, cuEventCreate);
  WEFT_CUDA(destroy_event, cuEventDestroy);
  WEFT_CUDA(record_event, cuEventRecord);
  WEFT_CUDA(query_event, cuEventQuery);
  WEFT_CUDA(await_event, cuStreamWaitEvent);
  WEFT_CUDA(load_module, cuModuleLoadData);
  WEFT_CUDA(unload_module, cuModuleUnload);
  WEFT_CUDA(get_function, cuModuleGetFunction);
  WEFT_CUDA(launch, cuLaunchKernel);
  WEFT_CUDA(error_text, cuGetErrorString);
#undef WEFT_CUDA
#undef WEFT_NAME

  void check(CUresult result, const char* what) const {
    if (result != CUDA_SUCCESS) refuse(result, what);
  }

  /// The devices of this machine. Throws device_error if the driver does not work.
  [[gnu::cold]] std::vector<device_facts> devices() const {
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
  /// Its compute capability: "9.0" with ".".
  [[gnu::cold]] std::string capability(CUdevice device, const char* between) const {
    int major = 0, minor = 0;
    device_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    device_attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    return std::to_string(major) + between + std::to_string(minor);
  }

 private:
  [[noreturn, gnu::cold]] void refuse(CUresult result, const char* what) const {
    const char* text = nullptr;
    error_text(result, &text);
    throw device_error(std::string("weft: cuda: ") + what + ": " + (text ? text : std::to_string(result)));
  }
};

/// The primary context of a device, which may be shared with other parts of the process, and a stream in it.
class cuda_queue {
 public:
  [[gnu::cold]] cuda_queue(const cuda_functions& cuda, int ordinal) : cuda_(cuda) {
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
  cuda_queue(const cuda_queue&) = delete;
  cuda_queue& operator=(const cuda_queue&) = delete;
  [[gnu::cold]] ~cuda_queue() {
    CUcontext before = nullptr;
    cuda_.get_context(&before);
    cuda_.set_context(context_);
    cuda_.destroy_stream(stream);
    cuda_.set_context(before);
    cuda_.release_context(device);
  }

  /// During its lifetime a context is current on this thread; then again that of the caller, who may use
  /// another device, or CUDA in other ways.
  class scope {
   public:
    scope(const cuda_functions& cuda, CUcontext context) : cuda_(cuda) {
      cuda_.check(cuda_.get_context(&before_), "cuCtxGetCurrent");
      if (before_ == context) return;
      cuda_.check(cuda_.set_context(context), "cuCtxSetCurrent");
      changed_ = true;
    }
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
  [[gnu::cold]] explicit cuda_backend(int ordinal = 0)
      : queue_(driver_, ordinal), workspace_(allocate(cublaslt::workspace_bytes)) {
    try {
      const auto current = queue_.use();
      products_.emplace();
    } catch (const device_error&) {
      deallocate(workspace_, cublaslt::workspace_bytes);
      throw;
    }
  }
  cuda_backend(const cuda_backend&) = delete;
  cuda_backend& operator=(const cuda_backend&) = delete;
  [[gnu::cold]] ~cuda_backend() override {
    try {
      const auto current = queue_.use();
      driver_.wait_stream(queue_.stream);
      end();
    } catch (const device_error&) {  // the driver has ended
      end();
    }
  }

  const char* name() const override { return "cuda"; }
  /// The queue of kernels and copies, for events.
  const cuda_queue& queue() const { return queue_; }
  [[gnu::cold]] std::string description() const override {
    char text[256]{};
    int version = 0;
    driver_.device_name(text, sizeof text - 1, queue_.device);
    driver_.driver_version(&version);
    return std::string(text) + ", CUDA driver " + std::to_string(version / 1000) + "." +
           std::to_string(version / 10 % 100);
  }

  void* allocate(std::size_t bytes) override {
    CUdeviceptr memory = 0;
    const auto current = queue_.use();
    const CUresult result = driver_.allocate(&memory, bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
      throw out_of_memory_error("weft: cuda: out of memory: could not allocate " + std::to_string(bytes) +
                                " bytes");
    driver_.check(result, "cuMemAlloc");
    return reinterpret_cast<void*>(memory);
  }
  void deallocate(void* memory, std::size_t) noexcept override {
    try {
      const auto current = queue_.use();
      driver_.deallocate(address(memory));
    } catch (const device_error&) {  // the context no longer exists, nor does the memory
    }
  }
  void upload(void* to, const void* from, std::size_t bytes) override {
    if (bytes == 0) return;
    const auto current = queue_.use();
    driver_.check(driver_.to_device(address(to), from, bytes, queue_.stream), "cuMemcpyHtoDAsync");
    wait();  // the host may free it
  }
  void fill_zero(void* memory, std::size_t bytes) override {
    if (bytes == 0) return;
    const auto current = queue_.use();
    driver_.check(driver_.fill(address(memory), 0, bytes, queue_.stream), "cuMemsetD8Async");
  }

  /// Loops over batch dims before the last one; products that cuBLASLt does not support use the generic
  /// kernel.
  void multiply(const native_code& code, const strided& a, const strided& b, const strided& c) override {
    const int order = c.extents.order;
    if (c.size() == 0 || a.extents.last() == 0)
      return jit_backend::multiply(code, a, b, c);
    const int kept = std::min(order, 3);
    index_t outer = 1;
    for (int d = 0; d < order - kept; ++d) outer *= c.extents[d];
    const auto current = queue_.use();
    for (index_t i = 0; i < outer; ++i) {
      const strided x = inner(a, kept, i), y = inner(b, kept, i), z = inner(c, kept, i);
      if (products_->multiply(x, y, z, workspace_, queue_.stream)) finish_launch([] { return "matmul"; });
      else jit_backend::multiply(code, x, y, z);
    }
  }

 protected:
  const char* dialect() const override { return cuda_dialect; }

  [[gnu::cold]] std::shared_ptr<compiled_kernel> compile(const std::string& text) override {
    const std::vector<char> code = compiler_.compile(text, "sm_" + driver_.capability(queue_.device, ""));
    const auto current = queue_.use();
    auto kernel = std::make_shared<cuda_kernel>(driver_);
    driver_.check(driver_.load_module(&kernel->module, code.data()), "cuModuleLoadData");
    driver_.check(driver_.get_function(&kernel->function, kernel->module, "weft_kernel"),
                  "cuModuleGetFunction");
    return kernel;
  }

  void run(compiled_kernel& kernel, const std::vector<void*>& pointers, parameters& p,
           index_t groups) override {
    std::vector<void*> arguments;
    for (void* const& pointer : pointers) arguments.push_back(const_cast<void**>(&pointer));
    arguments.push_back(p.data());
    const auto current = queue_.use();
    driver_.check(driver_.launch(static_cast<cuda_kernel&>(kernel).function, static_cast<unsigned>(groups), 1,
                                 1, static_cast<unsigned>(kernel.threads), 1, 1, 0, queue_.stream,
                                 arguments.data(), nullptr),
                  "cuLaunchKernel");
  }

  void read(void* to, const void* from, std::size_t bytes) override {
    const auto current = queue_.use();
    driver_.check(driver_.to_host(to, address(from), bytes, queue_.stream), "cuMemcpyDtoHAsync");
    wait();
  }

  void wait() override {
    const auto current = queue_.use();
    driver_.check(
        driver_.wait_stream(queue_.stream),
        "cuStreamSynchronize: something queued before has failed (WEFT_CHECK_LAUNCHES=1 says what)");
  }

 private:
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
  };

  static CUdeviceptr address(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }
  /// The last `kept` dims of `t` at position `i` of the others.
  static strided inner(strided t, int kept, index_t i) {
    const int dropped = t.extents.order - kept;
    const index_t offset = element_offset(t.extents, t.stride, 0, dropped, i);
    t.pointer = static_cast<char*>(t.pointer) + offset * size_of(t.type);
    for (int d = 0; d < kept; ++d) {
      t.extents[d] = t.extents[d + dropped];
      t.stride[d] = t.stride[d + dropped];
    }
    t.extents.order = kept;
    return t;
  }

  cuda_functions driver_;
  nvrtc_compiler compiler_;
  cuda_queue queue_;
  std::optional<cublaslt> products_;
  void* workspace_;
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
