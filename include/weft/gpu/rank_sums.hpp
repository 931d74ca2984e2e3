// SPDX-License-Identifier: MIT
// Reduction of the elements of several ranks on a GPU, bitwise identical to comm/reduce.hpp: the same tree
// over ranks, and the same types of sums.
#pragma once

#include <bit>
#include <map>
#include <tuple>

#include <weft/comm/operation.hpp>
#include <weft/gpu/cuda.hpp>
#include <weft/lower/text.hpp>

namespace weft::gpu {

/// The kernel. Rank r has elements r * count to (r + 1) * count - 1. Ranks are added in the manner of a
/// binary counter: level k holds the sum of 2^k ranks.
inline constexpr const char* rank_sum_text = R"(
KERNEL weft_kernel(GLOBAL char* p0, GLOBAL char* p1, long count) {
  GLOBAL const MEMORY* all = (GLOBAL const MEMORY*)p0;
  GLOBAL MEMORY* out = (GLOBAL MEMORY*)p1;
  for (long i = GLOBAL_ID; i < count; i += GLOBAL_SIZE) {
    T level[LEVELS];
    UNROLLED
    for (int r = 0; r < RANKS; ++r) {
      T x = LOADED(all[r * count + i]);
      int k = 0;
      UNROLLED
      for (; r >> k & 1; ++k) x = COMBINED(level[k], x);
      level[k] = x;
    }
    T sum = level[FIRST];
    UNROLLED
    for (int k = FIRST + 1; k < LEVELS; ++k)
      if (RANKS >> k & 1) sum = COMBINED(level[k], sum);
    out[i] = STORED(FINISHED(sum));
  }
}
)";

/// The kernels of one device, compiled when first needed.
class rank_sums {
 public:
  /// Keeps a reference to the device.
  explicit rank_sums(cuda_backend& gpu) : gpu_(gpu) {}

  /// Queues the reduction of `count` elements of each rank into `out`, which may be the elements of a rank.
  void queue(dtype type, reduction op, int ranks, const void* all, void* out, index_t count, CUstream stream);

 private:
  [[gnu::cold]] static std::string text_of(dtype type, reduction op, int ranks);

  cuda_backend& gpu_;
  std::map<std::tuple<dtype, reduction, int>, compiled_kernel*> kernels_;  // the device owns them
};

}  // namespace weft::gpu

#ifndef WEFT_COMPILED
#include <weft/gpu/impl/rank_sums.ipp>
#endif
