// SPDX-License-Identifier: MIT
// NVRTC's code for the attention kernels on tensor cores, by warps for every architecture and by warpgroups
// for sm_90a: no warning, no spilled register, and the intended instructions. Needs no GPU and no fake
// driver.
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "code_facts.hpp"

using namespace weft;

namespace {

/// The sources of forward and backward for [1, 200, 4, features] on [1, 100, 2, features].
std::vector<std::string> sources_of(dtype type, index_t features, const gpu::group_limits& limits) {
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
  test::sources_only device;
  device.of_groups = limits;
  device.call_native("attention", {.op = native_op::attention}, {{in.data(), 3}, forward, {}, 0});
  float scratch[1]{};  // is not accessed
  for (void* const at : {static_cast<void*>(scratch), static_cast<void*>(nullptr)})
    device.call_native("attention_backward", {.op = native_op::attention_backward},
                       {in, backward, {}, 0, at});
  return device.sources;
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
  const auto compiler = test::compiler_here();
  if (!compiler) return;
  const auto check = [&](dtype type, index_t features, const gpu::group_limits& limits,
                         const char* architecture, auto expect) {
    for (const std::string& source : sources_of(type, features, limits)) {
      const std::string name = name_of(type);
      CAPTURE(name);
      CAPTURE(features);
      CAPTURE(architecture);
      const test::code_facts facts = compiler->compile(source, architecture);
      CAPTURE(facts.log);
      REQUIRE(facts.compiled);
      CHECK(facts.log.find("warning") == std::string::npos);
      CHECK(facts.log.find("serialized") == std::string::npos);
      CHECK(facts.figure("([0-9]+) bytes stack frame") == 0);
      CHECK(facts.figure("([0-9]+) bytes spill stores") == 0);
      CHECK(facts.figure("([0-9]+) bytes spill loads") == 0);
      CHECK(facts.figure("Used ([0-9]+) registers") > 32);
      CHECK(facts.has("cp\\.async\\.cg\\.shared\\.global"));
      CHECK_FALSE(facts.has("(div|rem)\\.[su]64"));
      CHECK_FALSE(facts.has("\\.local"));
      CHECK_FALSE(facts.has("\\b(atom|red)\\."));
      expect(facts, name + "\\." + name);
    }
  };
  for (const auto& [type, features] : heads) {
    for (const char* architecture : {"sm_80", "sm_90", "sm_100", "sm_120"})
      check(type, features, {.tensor_core_memory = 99 << 10}, architecture,
            [](const auto& facts, const std::string& types) {
              CHECK(facts.has("mma\\.sync\\.aligned\\.m16n8k16\\.row\\.col\\.f32\\." + types + "\\.f32"));
              CHECK(facts.has("ldmatrix\\.sync\\.aligned\\.m8n8\\.x4\\.trans"));
            });
    if (features % 64 == 0)
      check(type, features, {.tensor_core_memory = 227 << 10, .warpgroups = true}, "sm_90a",
            [](const auto& facts, const std::string& types) {
              CHECK(facts.has("wgmma\\.mma_async\\.sync\\.aligned\\.m64n(32|64|128)k16\\.f32\\." + types));
              CHECK(facts.has("fence\\.proxy\\.async"));
              CHECK_FALSE(facts.has("mma\\.sync"));
            });
  }
}
