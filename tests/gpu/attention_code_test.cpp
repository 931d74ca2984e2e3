// SPDX-License-Identifier: MIT
// What NVRTC makes of the kernels of attention on tensor cores, for every architecture that they are for: no
// warning, no register spilled, and the instructions that they are about. Needs no GPU, and no stand-in.
#include <doctest/doctest.h>
#include <nvrtc.h>

#include <cstdlib>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include <weft/gpu/jit_backend.hpp>
#include <weft/gpu/library.hpp>
#include <weft/gpu/nvrtc.hpp>

#include "../skip.hpp"

using namespace weft;

namespace {

/// Keeps the source of each kernel, and runs none.
class sources_only : public gpu::jit_backend {
 public:
  const char* name() const override { return "sources"; }
  void* allocate(std::size_t bytes) override { return std::calloc(1, bytes); }
  void deallocate(void* memory, std::size_t) noexcept override { std::free(memory); }
  void fill_zero(void*, std::size_t) override {}
  ~sources_only() override { release(); }
  std::vector<std::string> sources;

 protected:
  const char* dialect() const override { return gpu::cuda_dialect; }
  gpu::group_limits limits() const override { return {.tensor_core_memory = 99 << 10}; }
  std::shared_ptr<gpu::compiled_kernel> compile(const std::string& text) override {
    sources.push_back(text);
    return std::make_shared<gpu::compiled_kernel>();
  }
  void run(gpu::compiled_kernel&, const std::vector<void*>&, gpu::parameters&, index_t) override {}
  void wait() override {}
  void read(void*, const void*, std::size_t) override {}
  void write(void*, const void*, std::size_t) override {}
};

/// The sources of forward and backward for [1, 200, 4, features] on [1, 100, 2, features].
std::vector<std::string> sources_of(dtype type, index_t features) {
  const auto operand = [&](index_t positions, index_t heads) {
    strided t;
    t.type = type;
    t.extents = {4, {1, positions, heads, features}};
    set_contiguous(t);
    return t;
  };
  const strided q = operand(200, 4), k = operand(100, 2);
  strided sums;
  sums.type = dtype::f32;
  sums.extents = {3, {1, 4, 200}};
  set_contiguous(sums);
  const std::vector<strided> in{q, k, k, q, sums, q}, forward{q, sums}, backward{q, k, k};
  sources_only device;
  device.call_native("attention", {.op = native_op::attention}, {{in.data(), 3}, forward, {}, 0});
  device.call_native("attention_backward", {.op = native_op::attention_backward}, {in, backward, {}, 0});
  return device.sources;
}

/// What a compiler says of a kernel.
struct code_facts {
  bool compiled = false;
  std::string log, ptx;

  /// The number before or after these words in ptxas' report; -1: there is none.
  int figure(const char* pattern) const {
    std::smatch found;
    return std::regex_search(log, found, std::regex(pattern)) ? std::stoi(found[1]) : -1;
  }
  /// Whether the PTX has such an instruction.
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
  gpu::nvrtc_compiler opened_;  // and what NVRTC opens
};

/// None without NVRTC.
std::optional<reporting_compiler> compiler_here() {
  try {
    return std::make_optional<reporting_compiler>();
  } catch (const device_error& e) {
    test::skip("nvrtc", e.what());
    return std::nullopt;
  }
}

}  // namespace

TEST_CASE("attention on tensor cores: machine code without spills, with its instructions") {
  struct head {
    dtype type;
    index_t features;
  };
  std::vector<head> heads{{dtype::bf16, 64}, {dtype::bf16, 128}, {dtype::f16, 80}};
  if (std::getenv("WEFT_TEST_LARGE"))
    for (const index_t features : {16, 32, 48, 96, 112})
      heads.insert(heads.end(), {{dtype::bf16, features}, {dtype::f16, features}});
  const auto compiler = compiler_here();
  if (!compiler) return;
  for (const auto& [type, features] : heads)
    for (const std::string& source : sources_of(type, features))
      for (const char* architecture : {"sm_80", "sm_90", "sm_100", "sm_120"}) {
        const std::string name = name_of(type);
        CAPTURE(name);
        CAPTURE(features);
        CAPTURE(architecture);
        const code_facts facts = compiler->compile(source, architecture);
        CAPTURE(facts.log);
        REQUIRE(facts.compiled);
        CHECK(facts.log.find("warning") == std::string::npos);
        CHECK(facts.figure("([0-9]+) bytes stack frame") == 0);
        CHECK(facts.figure("([0-9]+) bytes spill stores") == 0);
        CHECK(facts.figure("([0-9]+) bytes spill loads") == 0);
        CHECK(facts.figure("Used ([0-9]+) registers") > 32);
        CHECK(facts.has("mma\\.sync\\.aligned\\.m16n8k16\\.row\\.col\\.f32\\." + name + "\\." + name +
                        "\\.f32"));
        CHECK(facts.has("cp\\.async\\.cg\\.shared\\.global"));
        CHECK(facts.has("ldmatrix\\.sync\\.aligned\\.m8n8\\.x4\\.trans"));
        CHECK_FALSE(facts.has("(div|rem)\\.[su]64"));
        CHECK_FALSE(facts.has("\\.local"));
        CHECK_FALSE(facts.has("\\b(atom|red)\\."));
      }
}
