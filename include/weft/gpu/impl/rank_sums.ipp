// SPDX-License-Identifier: MIT
// Definitions of <weft/gpu/rank_sums.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/gpu/rank_sums.hpp>

namespace weft {
namespace gpu {

WEFT_DEFINE rank_sums::~rank_sums() {
  try {
    const auto current = on_.use();
    for (const auto& [key, kernel] : kernels_) driver_.unload_module(kernel.module);
  } catch (const device_error&) {  // the context no longer exists
  }
}

WEFT_DEFINE void rank_sums::queue(dtype type, reduction op, int ranks, const void* all, void* out,
                                  index_t count, CUstream stream) {
  if (count == 0) return;
  auto& kernel = kernels_[{type, op, ranks}];
  if (!kernel.function) kernel = compiled(type, op, ranks);
  void* arguments[] = {&all, &out, &count};
  const index_t groups = std::min((count + group_size - 1) / group_size, index_t{4096});
  driver_.check(driver_.launch(kernel.function, static_cast<unsigned>(groups), 1, 1, group_size, 1, 1, 0,
                               stream, arguments, nullptr),
                "cuLaunchKernel");
}

WEFT_DEFINE rank_sums::kernel_code rank_sums::compiled(dtype type, reduction op, int ranks) const {
  const std::vector<char> code =
      compiler_.compile(text_of(type, op, ranks), "sm_" + driver_.capability(on_.device, ""));
  kernel_code k;
  driver_.check(driver_.load_module(&k.module, code.data()), "cuModuleLoadData");
  driver_.check(driver_.get_function(&k.function, k.module, "weft_kernel"), "cuModuleGetFunction");
  return k;
}

WEFT_DEFINE std::string rank_sums::text_of(dtype type, reduction op, int ranks) {
  using namespace lower::detail;
  constexpr const char* combined[] = {"((a) + (b))", "((a) + (b))", "((a) * (b))",
                                      "((b) < (a) || (b) != (b) ? (b) : (a))",
                                      "((a) < (b) || (b) != (b) ? (b) : (a))"};
  const bool mean = op == reduction::average;
  return std::string(cuda_dialect) + "#define GROUP_SIZE " + std::to_string(group_size) + common_vocabulary +
         "#define RANKS " + std::to_string(ranks) + "\n#define LEVELS " +
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
