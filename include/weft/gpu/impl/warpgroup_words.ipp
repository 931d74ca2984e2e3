// SPDX-License-Identifier: MIT
// Definitions of <weft/gpu/warpgroup_words.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/gpu/warpgroup_words.hpp>

namespace weft {
namespace gpu {
namespace detail {

/// The word for sums of 8 n columns, of which a thread has 4 n elements.
WEFT_DEFINE std::string warpgroup_product(const std::string& type, int n, bool from_registers) {
  const int sums = 4 * n;
  std::string places, operands;
  for (int i = 0; i < sums; ++i) {
    const std::string separator = i > 0 ? ", " : "";
    places += separator + "%" + std::to_string(i);
    operands += separator + "\"+f\"(sum[" + std::to_string(i / 4) + "][" + std::to_string(i % 4) + "])";
  }
  const auto place = [&](int i) { return "%" + std::to_string(sums + i); };
  const std::string instruction = "wgmma.mma_async.sync.aligned.m64n" + std::to_string(8 * n) + "k16.f32." +
                                  type + "." + type + " {" + places + "}, ";
  const std::string head =
      std::string("FUNCTION void add_") + (from_registers ? "register" : "tile") + "_products(float (&sum)[" +
      std::to_string(n) + "][4], " + (from_registers ? "const uint* a" : "ulong a") +
      ", ulong b) {\n  asm volatile(\"{ .reg .pred adds; setp.ne.b32 adds, 1, 0; " + instruction;
  if (from_registers)
    return head + "{" + place(0) + ", " + place(1) + ", " + place(2) + ", " + place(3) + "}, " + place(4) +
           ", adds, 1, 1, 1; }\"\n    : " + operands +
           " : \"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]), \"l\"(b));\n}\n";
  return head + place(0) + ", " + place(1) + ", adds, 1, 1, 0, 0; }\"\n    : " + operands +
         " : \"l\"(a), \"l\"(b));\n}\n";
}

}  // namespace detail

WEFT_DEFINE std::string warpgroup_words(dtype type) {
  std::string words = R"(
/* What the hardware reads of a tile: where it begins, the bytes to the next 64 features and to the next eight
   rows, and the swizzle. */
FUNCTION ulong part_of_tile(uint address, int next_rows) {
  return (ulong)(address >> 4) | (ulong)(1024 >> 4) << 16 | (ulong)(next_rows >> 4) << 32 | (ulong)1 << 62;
}
FUNCTION void begin_products() { asm volatile("wgmma.fence.sync.aligned;" : : : "memory"); }
FUNCTION void end_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" : : : "memory");
}
/* What this thread wrote to shared memory before is seen by products after the next barrier. */
FUNCTION void show_to_products() { asm volatile("fence.proxy.async.shared::cta;" : : : "memory"); }
)";
  for (const int n : {4, 8, 16})
    for (const bool from_registers : {false, true})
      words += detail::warpgroup_product(name_of(type), n, from_registers);
  return words;
}

}  // namespace gpu
}  // namespace weft
