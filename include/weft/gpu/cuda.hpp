// SPDX-License-Identifier: MIT
// NVIDIA GPUs through the CUDA driver. Driver, NVRTC and cuBLASLt are opened at run time: programs start
// without them, and building them needs no nvcc.
//
//   device gpu(std::make_shared<gpu::cuda_backend>());
//   policy<on<cuda>, precision::bf16>                       // the GPU of this rank
#pragma once

#include <optional>

#include <weft/gpu/cublaslt.hpp>
#include <weft/gpu/cuda_driver.hpp>
#include <weft/gpu/nvrtc.hpp>
#include <weft/gpu/jit_backend.hpp>
#include <weft/gpu/tensor_core_words.hpp>

namespace weft::gpu {

/// One NVIDIA GPU, with the CUDA driver as runtime, NVRTC as compiler and cuBLASLt for products.
class cuda_backend : public jit_backend {
 public:
  /// `ordinal`: the device's number in the driver. Throws device_error if there is no such device, or if the
  /// driver, NVRTC or cuBLASLt is missing.
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
  /// Uses cuBLASLt's epilogues.
  bool multiply_with(const strided& a, const strided& b, const strided& c,
                     const product_epilogue& with) override;
  void allow_tf32(bool on) override { products_->allow_tf32(on); }

  /// Queues a kernel of this device (kernel_of) on a stream of its context; it is not part of recorded work.
  /// `arguments`: a pointer to each.
  void launch_on(CUstream stream, compiled_kernel& kernel, void** arguments, index_t groups);

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
  /// The captured graph, which is destroyed if `keeps` is false.
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
    index_t may_share = 0;   // bytes of group memory announced to the driver
  };

  /// With the suffix `a` if kernels use instructions that only this architecture has.
  [[gnu::cold]] std::string architecture() const {
    return "sm_" + driver_.capability(queue_.device, "") + (limits_.warpgroups ? "a" : "");
  }
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
