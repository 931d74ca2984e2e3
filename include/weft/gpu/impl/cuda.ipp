// SPDX-License-Identifier: MIT
// Definitions of <weft/gpu/cuda.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/gpu/cuda.hpp>
#include <weft/gpu/cuda_pages.hpp>
#include <weft/gpu/nvtx.hpp>

namespace weft {
namespace gpu {

WEFT_DEFINE cuda_backend::cuda_backend(int ordinal)
    : ordinal_(ordinal), queue_(driver_, ordinal), workspace_(allocate(cublaslt::workspace_bytes)) {
  send_ranges_to_nvtx();
  try {
    const auto current = queue_.use();
    if (driver_.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, queue_.device) >=
        tensor_core_capability)
      limits_.tensor_core_memory =
          driver_.attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, queue_.device);
    limits_.warpgroups = driver_.capability(queue_.device, "") == warpgroup_capability;
    products_.emplace();
    if (driver_.attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, queue_.device) != 0)
      pages_ = std::make_unique<cuda_pages>(driver_, queue_);
  } catch (const device_error&) {
    deallocate(workspace_, cublaslt::workspace_bytes);
    throw;
  }
}

WEFT_DEFINE cuda_backend::~cuda_backend() {
  try {
    const auto current = queue_.use();
    end();
  } catch (const device_error&) {  // the driver has ended
    end();
  }
}

WEFT_DEFINE std::string cuda_backend::description() const {
  char text[256]{};
  int version = 0;
  driver_.device_name(text, sizeof text - 1, queue_.device);
  driver_.driver_version(&version);
  return std::string(text) + ", CUDA driver " + std::to_string(version / 1000) + "." +
         std::to_string(version / 10 % 100);
}

WEFT_DEFINE void* cuda_backend::allocate(std::size_t bytes) {
  refuse_in_recording("needs more device memory than the previous step");
  CUdeviceptr memory = 0;
  const auto current = queue_.use();
  const CUresult result = driver_.allocate(&memory, bytes);
  if (result == CUDA_ERROR_OUT_OF_MEMORY)
    throw out_of_memory_error("weft: cuda: out of memory: could not allocate " + std::to_string(bytes) +
                              " bytes");
  driver_.check(result, "cuMemAlloc");
  return reinterpret_cast<void*>(memory);
}

WEFT_DEFINE void cuda_backend::deallocate(void* memory, std::size_t) noexcept {
  try {
    const auto current = queue_.use();
    driver_.deallocate(address(memory));
  } catch (const device_error&) {  // the context no longer exists, nor does the memory
  }
}

WEFT_DEFINE device_room cuda_backend::room() const {
  device_room all;
  const auto current = queue_.use();
  driver_.check(driver_.memory_info(&all.free, &all.total), "cuMemGetInfo");
  return all;
}

WEFT_DEFINE void* cuda_backend::allocate_staging(std::size_t bytes) {
  void* memory = nullptr;
  const auto current = queue_.use();
  const CUresult result = driver_.allocate_host(&memory, bytes, 0);
  if (result == CUDA_ERROR_OUT_OF_MEMORY)
    throw out_of_memory_error("weft: cuda: could not allocate " + std::to_string(bytes) +
                              " bytes of host memory that the device can access");
  driver_.check(result, "cuMemHostAlloc");
  return memory;
}

WEFT_DEFINE void cuda_backend::free_staging(void* memory) noexcept {
  try {
    const auto current = queue_.use();
    driver_.deallocate_host(memory);
  } catch (const device_error&) {  // the context no longer exists, nor does the memory
  }
}

WEFT_DEFINE void cuda_backend::fill_zero(void* memory, std::size_t bytes) {
  if (bytes == 0) return;
  const auto current = queue_.use();
  driver_.check(driver_.fill(address(memory), 0, bytes, stream()), "cuMemsetD8Async");
}

WEFT_DEFINE void cuda_backend::multiply(const native_code& code, const strided& a, const strided& b,
                                        const strided& c) {
  const int order = c.extents.order;
  if (c.size() == 0 || a.extents.last() == 0) return jit_backend::multiply(code, a, b, c);
  const int kept = std::min(order, 3);
  index_t outer = 1;
  for (int d = 0; d < order - kept; ++d) outer *= c.extents[d];
  const auto current = queue_.use();
  for (index_t i = 0; i < outer; ++i) {
    const strided x = inner(a, kept, i), y = inner(b, kept, i), z = inner(c, kept, i);
    if (products_->multiply(x, y, z, workspace_, stream())) finish_launch([] { return "matmul"; });
    else jit_backend::multiply(code, x, y, z);
  }
}

WEFT_DEFINE bool cuda_backend::multiply_with(const strided& a, const strided& b, const strided& c,
                                             const product_epilogue& with) {
  if (c.extents.order > 3 || a.extents.last() == 0) return false;
  const auto current = queue_.use();
  if (!products_->multiply(a, b, c, workspace_, stream(), with)) return false;
  finish_launch([] { return "matmul with an epilogue"; });
  return true;
}

WEFT_DEFINE std::shared_ptr<compiled_kernel> cuda_backend::compile(const std::string& text) {
  std::vector<char> code = compiler_.compile(text, architecture());
  auto kernel = load(code);
  static_cast<cuda_kernel&>(*kernel).code = std::move(code);
  return kernel;
}

WEFT_DEFINE std::string cuda_backend::code_identity() const {
  return description() + "\n" + compiler_.version() + "\n" + architecture();
}

WEFT_DEFINE std::vector<char> cuda_backend::code_of(compiled_kernel& kernel) const {
  return std::move(static_cast<cuda_kernel&>(kernel).code);
}

WEFT_DEFINE std::shared_ptr<compiled_kernel> cuda_backend::load(std::span<const char> code) {
  refuse_in_recording("needs a kernel that has not been launched before");
  const auto current = queue_.use();
  auto kernel = std::make_shared<cuda_kernel>(driver_);
  driver_.check(driver_.load_module(&kernel->module, code.data()), "cuModuleLoadData");
  driver_.check(driver_.get_function(&kernel->function, kernel->module, "weft_kernel"),
                "cuModuleGetFunction");
  return kernel;
}

WEFT_DEFINE void cuda_backend::run(compiled_kernel& kernel, const std::vector<void*>& pointers, parameters& p,
                                   index_t groups) {
  std::vector<void*> arguments;
  for (void* const& pointer : pointers) arguments.push_back(const_cast<void**>(&pointer));
  arguments.push_back(p.data());
  auto& own = static_cast<cuda_kernel&>(kernel);
  if (own.group_bytes > own.may_share) {
    const auto current = queue_.use();
    driver_.check(
        driver_.set_function_attribute(own.function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                       static_cast<int>(own.group_bytes)),
        "cuFuncSetAttribute");
    own.may_share = own.group_bytes;
  }
  launch_on(stream(), kernel, arguments.data(), groups);
}

WEFT_DEFINE void cuda_backend::launch_on(CUstream stream, compiled_kernel& kernel, void** arguments,
                                         index_t groups) {
  const auto current = queue_.use();
  const auto& own = static_cast<const cuda_kernel&>(kernel);
  driver_.check(
      driver_.launch(own.function, static_cast<unsigned>(groups), 1, 1, static_cast<unsigned>(own.threads), 1,
                     1, static_cast<unsigned>(own.group_bytes), stream, arguments, nullptr),
      "cuLaunchKernel");
}

WEFT_DEFINE void cuda_backend::read(void* to, const void* from, std::size_t bytes) {
  const auto current = queue_.use();
  driver_.check(driver_.to_host(to, address(from), bytes, stream()), "cuMemcpyDtoHAsync");
}

WEFT_DEFINE void cuda_backend::write(void* to, const void* from, std::size_t bytes) {
  const auto current = queue_.use();
  driver_.check(driver_.to_device(address(to), from, bytes, stream()), "cuMemcpyHtoDAsync");
}

WEFT_DEFINE void cuda_backend::wait() {
  const auto current = queue_.use();
  driver_.check(
      driver_.wait_stream(queue_.stream),
      "cuStreamSynchronize: an operation queued earlier has failed (WEFT_CHECK_LAUNCHES=1 says which)");
}

/// The steps of a graph refer to the memory of tensors, which whoever recorded it must keep.
class cuda_backend::recorded_graph final : public recorded_work {
 public:
  recorded_graph(cuda_backend& of, CUgraphExec graph, std::unique_ptr<recorded_parts> parts)
      : of_(of), graph_(graph), parts_(std::move(parts)) {}
  recorded_graph(const recorded_graph&) = delete;
  recorded_graph& operator=(const recorded_graph&) = delete;
  ~recorded_graph() override {
    of_.release(*parts_);
    try {
      const auto current = of_.queue_.use();
      of_.driver_.destroy_executable(graph_);
    } catch (const device_error&) {  // the context no longer exists, nor does the graph
    }
  }
  void replay(std::span<const std::uint64_t> keys) override {
    of_.begin_replay(*parts_, keys);
    const auto current = of_.queue_.use();
    of_.driver_.check(of_.driver_.launch_graph(graph_, of_.queue_.stream), "cuGraphLaunch");
  }

 private:
  cuda_backend& of_;
  CUgraphExec graph_;
  std::unique_ptr<recorded_parts> parts_;
};

WEFT_DEFINE void cuda_backend::begin_recording() {
  const auto current = queue_.use();
  begin_parts();  // from here on no other thread records
  try {
    if (!capturing_) capturing_.emplace(driver_, ordinal_);
    driver_.check(driver_.begin_capture(capturing_->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                  "cuStreamBeginCapture");
  } catch (const device_error&) {
    release(*end_parts());
    throw;
  }
}

WEFT_DEFINE CUgraph cuda_backend::captured(bool keeps) {
  CUgraph graph = nullptr;
  const CUresult result = driver_.end_capture(capturing_->stream, &graph);
  if (keeps && result == CUDA_SUCCESS) return graph;
  if (graph) driver_.destroy_graph(graph);
  if (keeps) driver_.check(result, "cuStreamEndCapture");
  return nullptr;
}

WEFT_DEFINE std::unique_ptr<recorded_work> cuda_backend::end_recording() {
  const auto current = queue_.use();
  std::unique_ptr<recorded_parts> parts = end_parts();
  CUgraphExec executable = nullptr;
  try {
    const CUgraph graph = captured(true);
    const CUresult result = driver_.make_executable(&executable, graph, 0);
    driver_.destroy_graph(graph);
    driver_.check(result, "cuGraphInstantiate");
  } catch (const device_error&) {
    release(*parts);
    throw;
  }
  return std::make_unique<recorded_graph>(*this, executable, std::move(parts));
}

WEFT_DEFINE void cuda_backend::abandon_recording() noexcept {
  try {
    const auto current = queue_.use();
    const std::unique_ptr<recorded_parts> parts = end_parts();
    captured(false);
    if (parts) release(*parts);
  } catch (const device_error&) {  // the context no longer exists
  }
}

WEFT_DEFINE strided cuda_backend::inner(strided t, int kept, index_t i) {
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

}  // namespace gpu
}  // namespace weft
