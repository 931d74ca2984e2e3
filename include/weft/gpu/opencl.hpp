// SPDX-License-Identifier: MIT
// OpenCL 1.2 devices. The library is opened at run time, so programs start without it.
//
// OpenCL refers to memory by objects, not addresses. Each object is assigned a range of addresses that
// nothing else uses, so that weft can compute with addresses and offsets as on other devices.
//
//   device gpu(std::make_shared<gpu::opencl_backend>());
//   policy<on<opencl>, precision::bf16>
#pragma once

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <weft/gpu/library.hpp>
#include <weft/gpu/jit_backend.hpp>

namespace weft::gpu {

/// The OpenCL functions in use, found in the loader's library.
struct opencl_functions {
  library from{{"libOpenCL.so.1", "libOpenCL.so"}};
#define WEFT_OPENCL(name) decltype(&::name) name = from.function<decltype(&::name)>(#name)
  WEFT_OPENCL(clGetPlatformIDs);
  WEFT_OPENCL(clGetPlatformInfo);
  WEFT_OPENCL(clGetDeviceIDs);
  WEFT_OPENCL(clGetDeviceInfo);
  WEFT_OPENCL(clCreateContext);
  WEFT_OPENCL(clReleaseContext);
  WEFT_OPENCL(clCreateCommandQueue);
  WEFT_OPENCL(clReleaseCommandQueue);
  WEFT_OPENCL(clCreateBuffer);
  WEFT_OPENCL(clReleaseMemObject);
  WEFT_OPENCL(clCreateProgramWithSource);
  WEFT_OPENCL(clCreateProgramWithBinary);
  WEFT_OPENCL(clBuildProgram);
  WEFT_OPENCL(clGetProgramBuildInfo);
  WEFT_OPENCL(clGetProgramInfo);
  WEFT_OPENCL(clReleaseProgram);
  WEFT_OPENCL(clCreateKernel);
  WEFT_OPENCL(clGetKernelInfo);
  WEFT_OPENCL(clReleaseKernel);
  WEFT_OPENCL(clSetKernelArg);
  WEFT_OPENCL(clEnqueueNDRangeKernel);
  WEFT_OPENCL(clEnqueueReadBuffer);
  WEFT_OPENCL(clEnqueueWriteBuffer);
  WEFT_OPENCL(clEnqueueFillBuffer);
  WEFT_OPENCL(clFinish);
#undef WEFT_OPENCL

  /// The devices of all platforms, GPUs first.
  [[gnu::cold]] std::vector<cl_device_id> devices() const;
  [[gnu::cold]] std::string info(cl_device_id device, cl_device_info what) const {
    char text[256]{};
    clGetDeviceInfo(device, what, sizeof text - 1, text, nullptr);
    return text;
  }
};

/// One OpenCL device.
class opencl_backend : public jit_backend {
 public:
  /// Opens a device by its number: GPUs first, then devices of other types. Throws device_error if there is
  /// none with that number.
  [[gnu::cold]] explicit opencl_backend(int number = 0);
  opencl_backend(const opencl_backend&) = delete;
  opencl_backend& operator=(const opencl_backend&) = delete;
  [[gnu::cold]] ~opencl_backend() override;

  const char* name() const override { return "opencl"; }
  [[gnu::cold]] std::string description() const override {
    return cl_.info(device_, CL_DEVICE_NAME) + ", " + cl_.info(device_, CL_DRIVER_VERSION);
  }

  bool has_f64() const override { return has_f64_; }
  void* allocate(std::size_t bytes) override;
  void deallocate(void* memory, std::size_t) noexcept override;
  [[gnu::cold]] device_room room() const override;
  void fill_zero(void* memory, std::size_t bytes) override;

 protected:
  const char* dialect() const override { return opencl_dialect; }

  [[gnu::cold]] std::shared_ptr<compiled_kernel> compile(const std::string& text) override;
  [[gnu::cold]] std::string code_identity() const override;
  [[gnu::cold]] std::vector<char> code_of(compiled_kernel& kernel) const override;
  [[gnu::cold]] std::shared_ptr<compiled_kernel> load(std::span<const char> code) override;

  void run(compiled_kernel& kernel, const std::vector<void*>& pointers, parameters& p,
           index_t groups) override;

  group_limits limits() const override { return limits_; }
  void wait() override { check(cl_.clFinish(queue_), "clFinish"); }

  void read(void* to, const void* from, std::size_t bytes) override;
  void write(void* to, const void* from, std::size_t bytes) override;

 private:
  struct opencl_kernel : compiled_kernel {
    explicit opencl_kernel(const opencl_functions& functions) : cl(functions) {}
    ~opencl_kernel() override {
      if (function) cl.clReleaseKernel(function);
    }
    const opencl_functions& cl;
    cl_kernel function = nullptr;
  };
  struct memory_object {
    cl_mem object;
    std::size_t bytes;
  };
  struct place {
    cl_mem object;
    std::size_t offset;
  };

  static constexpr const char* build_options = "-cl-std=CL1.2";

  [[gnu::cold]] group_limits limits_of_device() const;

  static void check(cl_int code, const char* function) {
    if (code != CL_SUCCESS) refuse(code, function);
  }
  [[noreturn, gnu::cold]] static void refuse(cl_int code, const char* function);
  [[noreturn, gnu::cold]] static void refuse_memory(std::size_t bytes, const std::string& why);
  [[gnu::cold]] static std::string name_of(cl_int code);
  static bool is_out_of_memory(cl_int code) {
    return code == CL_MEM_OBJECT_ALLOCATION_FAILURE || code == CL_OUT_OF_RESOURCES ||
           code == CL_OUT_OF_HOST_MEMORY;
  }

  /// A buffer that has been written, since many drivers take memory for it only then: if there is not enough,
  /// this throws out_of_memory_error, and not the first kernel that uses the buffer, too late for a retry.
  [[gnu::cold]] cl_mem created(std::size_t bytes);

  /// Builds the kernel of `program`, and releases the program.
  [[gnu::cold]] std::shared_ptr<compiled_kernel> built(cl_program program) const;

  /// The object that contains an address, and the offset in it. For empty tensors, the address directly after
  /// an object is accepted.
  place find(const void* memory) const;

  opencl_functions cl_;
  cl_device_id device_ = nullptr;
  group_limits limits_;
  std::size_t most_parameter_bytes_ = 1024;  // of a kernel, as promised
  bool has_f64_ = false;
  cl_context context_ = nullptr;
  cl_command_queue queue_ = nullptr;
  mutable std::mutex objects_mutex_;
  std::map<std::uintptr_t, memory_object> objects_;
  std::size_t allocated_ = 0;  // bytes of all objects; drivers may not check that the device has so many
  std::uintptr_t next_address_ = std::uintptr_t{1} << 40;
};

}  // namespace weft::gpu

namespace weft {

/// OpenCL devices, for on<opencl>.
struct opencl {
  static constexpr auto name = "opencl";
  [[gnu::cold]] static std::vector<device_facts> list();
  static std::shared_ptr<backend> open(int number, const device_options&) {
    return std::make_shared<gpu::opencl_backend>(number);
  }
};

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/gpu/impl/opencl.ipp>
#endif
