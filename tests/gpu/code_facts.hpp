// SPDX-License-Identifier: MIT
// NVRTC's code for kernels, for tests of machine code. Needs no GPU and no fake driver.
#pragma once

#include <nvrtc.h>

#include <cstdlib>
#include <mutex>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include <weft/gpu/jit_backend.hpp>
#include <weft/gpu/library.hpp>
#include <weft/gpu/nvrtc.hpp>

#include "../skip.hpp"

namespace weft::test {

/// A device that keeps the source of each kernel, and runs none.
class sources_only : public gpu::jit_backend {
 public:
  const char* name() const override { return "sources"; }
  void* allocate(std::size_t bytes) override { return std::calloc(1, bytes); }
  void deallocate(void* memory, std::size_t) noexcept override { std::free(memory); }
  void fill_zero(void*, std::size_t) override {}
  ~sources_only() override { release(); }
  std::vector<std::string> sources;
  gpu::group_limits of_groups{.tensor_core_memory = 99 << 10};
  bool launches_jointly = false;  // several kernels in one text

 protected:
  const char* dialect() const override { return gpu::cuda_dialect; }
  gpu::group_limits limits() const override { return of_groups; }
  bool reads_pointers() const override { return launches_jointly; }
  std::shared_ptr<gpu::compiled_kernel> compile(const std::string& text) override {
    const std::lock_guard lock(mutex_);
    sources.push_back(text);
    return std::make_shared<gpu::compiled_kernel>();
  }
  void run(gpu::compiled_kernel&, const std::vector<void*>&, gpu::parameters&, index_t) override {}
  void wait() override {}
  void read(void*, const void*, std::size_t) override {}
  void write(void*, const void*, std::size_t) override {}

 private:
  std::mutex mutex_;
};

/// A compiler's report on a kernel.
struct code_facts {
  bool compiled = false;
  std::string log, ptx;

  /// The number that `pattern` captures in ptxas' report; -1 if there is none.
  int figure(const char* pattern) const {
    std::smatch found;
    return std::regex_search(log, found, std::regex(pattern)) ? std::stoi(found[1]) : -1;
  }
  /// Whether the PTX has an instruction that matches `pattern`.
  bool has(const std::string& pattern) const { return std::regex_search(ptx, std::regex(pattern)); }
};

/// NVRTC with the options that report resources.
class reporting_compiler {
 public:
  code_facts compile(const std::string& text, const std::string& architecture) const {
    nvrtcProgram program = nullptr;
    create(&program, text.c_str(), "weft.cu", 0, nullptr, nullptr);
    const std::string option = "--gpu-architecture=" + architecture;
    const char* options[] = {option.c_str(), "--std=c++17", "--ptxas-options=-v", "--diag-suppress=177"};
    code_facts facts;
    facts.compiled = compile_program(program, 4, options) == NVRTC_SUCCESS;
    facts.log = text_of(program, log_size, get_log);
    if (facts.compiled) facts.ptx = text_of(program, ptx_size, get_ptx);
    destroy(&program);
    return facts;
  }

 private:
  static std::string text_of(nvrtcProgram program, decltype(&nvrtcGetPTXSize) size_of,
                             decltype(&nvrtcGetPTX) get) {
    std::size_t size = 0;
    size_of(program, &size);
    std::string text(size, ' ');
    get(program, text.data());
    return text;
  }
  gpu::library from_{{"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"}, &gpu::cuda_folders};
#define NVRTC(member, name) decltype(&::name) member = from_.function<decltype(&::name)>(#name)
  NVRTC(create, nvrtcCreateProgram);
  NVRTC(compile_program, nvrtcCompileProgram);
  NVRTC(log_size, nvrtcGetProgramLogSize);
  NVRTC(get_log, nvrtcGetProgramLog);
  NVRTC(ptx_size, nvrtcGetPTXSize);
  NVRTC(get_ptx, nvrtcGetPTX);
  NVRTC(destroy, nvrtcDestroyProgram);
#undef NVRTC
  gpu::nvrtc_compiler opened_;  // also opens the libraries that NVRTC needs
};

/// The compiler; none without NVRTC.
inline std::optional<reporting_compiler> compiler_here() {
  try {
    return std::make_optional<reporting_compiler>();
  } catch (const device_error& e) {
    skip("nvrtc", e.what());
    return std::nullopt;
  }
}

}  // namespace weft::test
