// SPDX-License-Identifier: MIT
// Definitions of <weft/gpu/opencl.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/gpu/opencl.hpp>

namespace weft {
namespace gpu {

WEFT_DEFINE std::vector<cl_device_id> opencl_functions::devices() const {
  cl_platform_id platforms[16];
  cl_uint platform_count = 0;
  if (clGetPlatformIDs(16, platforms, &platform_count) != CL_SUCCESS) platform_count = 0;
  std::vector<cl_device_id> all;
  for (const cl_device_type type : {cl_device_type{CL_DEVICE_TYPE_GPU}, cl_device_type{CL_DEVICE_TYPE_ALL}})
    for (cl_uint i = 0; i < std::min<cl_uint>(platform_count, 16); ++i) {
      cl_device_id found[64];
      cl_uint count = 0;
      if (clGetDeviceIDs(platforms[i], type, 64, found, &count) != CL_SUCCESS) continue;
      for (const cl_device_id d : std::span(found, std::min<cl_uint>(count, 64)))
        if (std::find(all.begin(), all.end(), d) == all.end()) all.push_back(d);
    }
  return all;
}

WEFT_DEFINE opencl_backend::opencl_backend(int number) {
  const std::vector<cl_device_id> all = cl_.devices();
  if (all.empty()) throw device_error("weft: opencl: this machine has no OpenCL device");
  if (number < 0 || number >= static_cast<int>(all.size()))
    throw device_error("weft: there is no device opencl:" + std::to_string(number) + ": this machine has " +
                       std::to_string(all.size()));
  device_ = all[static_cast<std::size_t>(number)];
  limits_ = limits_of_device();
  cl_.clGetDeviceInfo(device_, CL_DEVICE_MAX_PARAMETER_SIZE, sizeof most_parameter_bytes_,
                      &most_parameter_bytes_, nullptr);
  cl_device_fp_config of_f64 = 0;
  cl_.clGetDeviceInfo(device_, CL_DEVICE_DOUBLE_FP_CONFIG, sizeof of_f64, &of_f64, nullptr);
  has_f64_ = of_f64 != 0;
  cl_int code = 0;
  context_ = cl_.clCreateContext(nullptr, 1, &device_, nullptr, nullptr, &code);
  check(code, "clCreateContext");
  queue_ = cl_.clCreateCommandQueue(context_, device_, 0, &code);
  if (code != CL_SUCCESS) cl_.clReleaseContext(context_);
  check(code, "clCreateCommandQueue");
}

WEFT_DEFINE opencl_backend::~opencl_backend() {
  release();
  if (queue_) cl_.clReleaseCommandQueue(queue_);
  if (context_) cl_.clReleaseContext(context_);
}

WEFT_DEFINE void* opencl_backend::allocate(std::size_t bytes) {
  const std::size_t total = room().total;
  {
    const std::lock_guard lock(objects_mutex_);
    if (total > 0 && bytes > total - std::min(total, allocated_))
      refuse_memory(bytes, "the device has " + std::to_string(total) + " bytes");
    allocated_ += bytes;
  }
  cl_mem object = nullptr;
  try {
    object = created(bytes);
    const std::lock_guard lock(objects_mutex_);
    const std::uintptr_t address = next_address_;
    objects_.emplace(address, memory_object{object, bytes});
    next_address_ += (bytes + 4095) / 4096 * 4096 + 4096;
    return reinterpret_cast<void*>(address);
  } catch (...) {
    if (object) cl_.clReleaseMemObject(object);
    const std::lock_guard lock(objects_mutex_);
    allocated_ -= bytes;
    throw;
  }
}

WEFT_DEFINE cl_mem opencl_backend::created(std::size_t bytes) {
  cl_int code = 0;
  const cl_mem object = cl_.clCreateBuffer(context_, CL_MEM_READ_WRITE, bytes, nullptr, &code);
  if (code == CL_INVALID_BUFFER_SIZE) {
    cl_ulong most = 0;
    cl_.clGetDeviceInfo(device_, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof most, &most, nullptr);
    refuse_memory(bytes, "one buffer may have at most " + std::to_string(most) +
                             " bytes (CL_DEVICE_MAX_MEM_ALLOC_SIZE)");
  }
  if (code == CL_SUCCESS) {
    const cl_uchar zero = 0;
    code = cl_.clEnqueueFillBuffer(queue_, object, &zero, 1, 0, 1, 0, nullptr, nullptr);
    if (code == CL_SUCCESS) return object;
    cl_.clReleaseMemObject(object);
  }
  if (!is_out_of_memory(code)) refuse(code, "allocation of a buffer");
  cl_.clFinish(queue_);  // until then the driver keeps what was released
  refuse_memory(bytes, name_of(code));
}

WEFT_DEFINE void opencl_backend::deallocate(void* memory, std::size_t) noexcept {
  const std::lock_guard lock(objects_mutex_);
  const auto found = objects_.find(reinterpret_cast<std::uintptr_t>(memory));
  if (found == objects_.end()) return;
  cl_.clReleaseMemObject(found->second.object);
  allocated_ -= found->second.bytes;
  objects_.erase(found);
}

WEFT_DEFINE device_room opencl_backend::room() const {
  cl_ulong bytes = 0;
  cl_.clGetDeviceInfo(device_, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof bytes, &bytes, nullptr);
  return {static_cast<std::size_t>(bytes), 0};
}

WEFT_DEFINE void opencl_backend::fill_zero(void* memory, std::size_t bytes) {
  if (bytes == 0) return;
  const place at = find(memory);
  const cl_uchar zero = 0;
  check(cl_.clEnqueueFillBuffer(queue_, at.object, &zero, 1, at.offset, bytes, 0, nullptr, nullptr),
        "clEnqueueFillBuffer");
}

WEFT_DEFINE std::shared_ptr<compiled_kernel> opencl_backend::compile(const std::string& text) {
  const char* source = text.c_str();
  cl_int code = 0;
  const cl_program program = cl_.clCreateProgramWithSource(context_, 1, &source, nullptr, &code);
  check(code, "clCreateProgramWithSource");
  return built(program);
}

WEFT_DEFINE std::string opencl_backend::code_identity() const {
  cl_platform_id platform = nullptr;
  char of_platform[256]{};
  cl_.clGetDeviceInfo(device_, CL_DEVICE_PLATFORM, sizeof platform, &platform, nullptr);
  cl_.clGetPlatformInfo(platform, CL_PLATFORM_VERSION, sizeof of_platform - 1, of_platform, nullptr);
  std::string all = std::string("opencl ") + build_options + "\n" + of_platform;
  for (const auto what : {CL_DEVICE_NAME, CL_DEVICE_VENDOR, CL_DEVICE_VERSION, CL_DRIVER_VERSION})
    all += "\n" + cl_.info(device_, static_cast<cl_device_info>(what));
  return all;
}

WEFT_DEFINE std::vector<char> opencl_backend::code_of(compiled_kernel& kernel) const {
  cl_program program = nullptr;  // of one device
  std::size_t size = 0;
  if (cl_.clGetKernelInfo(static_cast<opencl_kernel&>(kernel).function, CL_KERNEL_PROGRAM, sizeof program,
                          &program, nullptr) != CL_SUCCESS ||
      cl_.clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, nullptr) != CL_SUCCESS)
    return {};
  std::vector<char> code(size);
  char* to = code.data();
  if (cl_.clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof to, &to, nullptr) != CL_SUCCESS) return {};
  return code;
}

WEFT_DEFINE std::shared_ptr<compiled_kernel> opencl_backend::load(std::span<const char> code) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(code.data());
  const std::size_t size = code.size();
  cl_int result = 0;
  const cl_program program =
      cl_.clCreateProgramWithBinary(context_, 1, &device_, &size, &bytes, nullptr, &result);
  check(result, "clCreateProgramWithBinary");
  return built(program);
}

WEFT_DEFINE std::shared_ptr<compiled_kernel> opencl_backend::built(cl_program program) const {
  cl_int code = cl_.clBuildProgram(program, 1, &device_, build_options, nullptr, nullptr);
  if (code != CL_SUCCESS) {
    std::size_t size = 0;
    cl_.clGetProgramBuildInfo(program, device_, CL_PROGRAM_BUILD_LOG, 0, nullptr, &size);
    std::string log(size, ' ');
    cl_.clGetProgramBuildInfo(program, device_, CL_PROGRAM_BUILD_LOG, size, log.data(), nullptr);
    cl_.clReleaseProgram(program);
    throw device_error("weft: opencl: a kernel does not compile:\n" + log);
  }
  auto kernel = std::make_shared<opencl_kernel>(cl_);
  kernel->function = cl_.clCreateKernel(program, "weft_kernel", &code);
  cl_.clReleaseProgram(program);
  check(code, "clCreateKernel");
  return kernel;
}

WEFT_DEFINE void opencl_backend::run(compiled_kernel& kernel, const std::vector<void*>& pointers,
                                     parameters& p, index_t groups) {
  const cl_kernel function = static_cast<opencl_kernel&>(kernel).function;
  const std::size_t bytes = pointers.size() * sizeof(cl_mem) + p.size() * sizeof(index_t);
  // Devices may accept more parameters than they promise.
  const auto check_launch = [&](cl_int code, const char* called) {
    if (code != CL_SUCCESS && bytes > most_parameter_bytes_)
      throw device_error("weft: opencl: a kernel has " + std::to_string(bytes) +
                         " bytes of parameters, of which this device promises to accept " +
                         std::to_string(most_parameter_bytes_) + ": " + called + " failed with " +
                         name_of(code));
    check(code, called);
  };
  cl_uint next = 0;
  for (std::size_t i = 0; i < pointers.size(); ++i) {
    const place at = find(pointers[i]);
    p[i] = static_cast<index_t>(at.offset);
    check(cl_.clSetKernelArg(function, next++, sizeof(cl_mem), &at.object), "clSetKernelArg");
  }
  check_launch(cl_.clSetKernelArg(function, next, p.size() * sizeof(index_t), p.data()), "clSetKernelArg");
  const auto local = static_cast<std::size_t>(kernel.threads),
             global = static_cast<std::size_t>(groups) * local;
  check_launch(cl_.clEnqueueNDRangeKernel(queue_, function, 1, nullptr, &global, &local, 0, nullptr, nullptr),
               "clEnqueueNDRangeKernel");
}

WEFT_DEFINE group_limits opencl_backend::limits_of_device() const {
  cl_ulong bytes = 0;
  cl_.clGetDeviceInfo(device_, CL_DEVICE_LOCAL_MEM_SIZE, sizeof bytes, &bytes, nullptr);
  std::size_t threads = 0;
  cl_.clGetDeviceInfo(device_, CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof threads, &threads, nullptr);
  cl_device_local_mem_type type = CL_LOCAL;
  cl_.clGetDeviceInfo(device_, CL_DEVICE_LOCAL_MEM_TYPE, sizeof type, &type, nullptr);
  return {.memory = static_cast<index_t>(bytes),
          .threads = static_cast<int>(std::min<std::size_t>(threads, 1024)),
          .memory_is_own = type == CL_LOCAL};
}

WEFT_DEFINE void opencl_backend::read(void* to, const void* from, std::size_t bytes) {
  const place at = find(from);
  check(cl_.clEnqueueReadBuffer(queue_, at.object, CL_FALSE, at.offset, bytes, to, 0, nullptr, nullptr),
        "clEnqueueReadBuffer");
}

WEFT_DEFINE void opencl_backend::write(void* to, const void* from, std::size_t bytes) {
  const place at = find(to);
  check(cl_.clEnqueueWriteBuffer(queue_, at.object, CL_FALSE, at.offset, bytes, from, 0, nullptr, nullptr),
        "clEnqueueWriteBuffer");
}

WEFT_DEFINE std::string opencl_backend::name_of(cl_int code) {
  switch (code) {
    case CL_MEM_OBJECT_ALLOCATION_FAILURE: return "CL_MEM_OBJECT_ALLOCATION_FAILURE";
    case CL_OUT_OF_RESOURCES: return "CL_OUT_OF_RESOURCES";
    case CL_OUT_OF_HOST_MEMORY: return "CL_OUT_OF_HOST_MEMORY";
    default: return "code " + std::to_string(code);
  }
}

WEFT_DEFINE void opencl_backend::refuse(cl_int code, const char* function) {
  throw device_error(std::string("weft: opencl: ") + function + " failed with " + name_of(code));
}

WEFT_DEFINE void opencl_backend::refuse_memory(std::size_t bytes, const std::string& why) {
  throw out_of_memory_error("weft: opencl: out of memory: " + why + ": could not allocate " +
                            std::to_string(bytes) + " bytes");
}

WEFT_DEFINE opencl_backend::place opencl_backend::find(const void* memory) const {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  const std::lock_guard lock(objects_mutex_);
  auto after = objects_.upper_bound(address);
  if (after == objects_.begin())
    throw device_error("weft: opencl: an address does not belong to this device");
  const auto& [begin, object] = *--after;
  if (address - begin > object.bytes)
    throw device_error("weft: opencl: an address does not belong to this device");
  return {object.object, address - begin};
}

}  // namespace gpu

WEFT_DEFINE std::vector<device_facts> opencl::list() {
  const gpu::opencl_functions cl;
  std::vector<device_facts> all;
  for (const cl_device_id d : cl.devices()) {
    cl_ulong bytes = 0;
    cl.clGetDeviceInfo(d, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof bytes, &bytes, nullptr);
    all.push_back({cl.info(d, CL_DEVICE_NAME), bytes, cl.info(d, CL_DEVICE_VERSION)});
  }
  return all;
}

}  // namespace weft
