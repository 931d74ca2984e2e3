// SPDX-License-Identifier: MIT
// Definitions of <weft/gpu/rank_sums.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/gpu/rank_sums.hpp>

namespace weft {
namespace gpu {

WEFT_DEFINE void rank_sums::queue(dtype type, reduction op, int ranks, const void* all, void* out,
                                  index_t count, CUstream stream) {
  if (count == 0) return;
  compiled_kernel*& kernel = kernels_[{type, op, ranks}];
  if (!kernel) kernel = &gpu_.kernel_of(text_of(type, op, ranks));
  void* arguments[] = {&all, &out, &count};
  gpu_.launch_on(stream, *kernel, arguments, gpu_.groups_for(count));
}

WEFT_DEFINE std::string rank_sums::text_of(dtype type, reduction op, int ranks) {
  using namespace lower::detail;
  constexpr const char* combined[] = {"((a) + (b))", "((a) + (b))", "((a) * (b))",
                                      "((b) < (a) || (b) != (b) ? (b) : (a))",
                                      "((a) < (b) || (b) != (b) ? (b) : (a))"};
  const bool mean = op == reduction::average;
  return "#define RANKS " + std::to_string(ranks) + "\n#define LEVELS " +
         std::to_string(std::bit_width(static_cast<unsigned>(ranks))) + "\n#define FIRST " +
         std::to_string(std::countr_zero(static_cast<unsigned>(ranks))) + "\n#define UNROLLED " +
         (ranks <= 64 ? "_Pragma(\"unroll\")" : "") + "\n#define MEMORY " + memory_name(type) +
         "\n#define T " + register_name(type) + "\n#define LOADED(x) " + loaded(type, "x") +
         "\n#define STORED(x) " + stored(type, "x") + "\n#define COMBINED(a, b) " +
         combined[static_cast<int>(op)] + "\n#define FINISHED(x) " +
         (mean ? "(T)((double)(x) / (double)RANKS)" : "(x)") + "\n" + rank_sum_text;
}

}  // namespace gpu
}  // namespace weft
