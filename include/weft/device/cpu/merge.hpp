// SPDX-License-Identifier: MIT
// Merges the results of attention to several parts of the keys into the result for all keys.
//
// Each part has a result, and the logarithm of the sum of exponentials by which it is normalized, so the
// whole is a mean weighted by these sums.
#pragma once

#include <cmath>
#include <limits>

#include <weft/device/cpu/executor.hpp>
#include <weft/device/native.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

/// in: result [batch, query, head, feature] and log_sum [batch, head, query] for further keys; out: those for
/// the previous keys, which become those for all keys.
template <class T>
void merge_attention(const native_call& call) {
  const strided &part = call.in[0], &part_sum = call.in[1], &whole = call.out[0], &sum = call.out[1];
  const index_t queries = part.extents[1], heads = part.extents[2], features = part.extents[3];
  call.threads.parallel_for(part.extents[0] * queries, [&](index_t task, scratch_memory&) {
    const index_t b = task / queries, t = task % queries;
    for (index_t h = 0; h < heads; ++h) {
      T& s = sum.data<T>()[b * sum.stride[0] + h * sum.stride[1] + t * sum.stride[2]];
      const T other =
          part_sum.data<T>()[b * part_sum.stride[0] + h * part_sum.stride[1] + t * part_sum.stride[2]];
      const T top = std::fmax(s, other);
      if (top == -std::numeric_limits<T>::infinity()) continue;  // no keys so far
      const T both = top + std::log(std::exp(s - top) + std::exp(other - top));
      const T before = std::exp(s - both), added = std::exp(other - both);
      T* y = whole.data<T>() + b * whole.stride[0] + t * whole.stride[1] + h * whole.stride[2];
      const T* x = part.data<T>() + b * part.stride[0] + t * part.stride[1] + h * part.stride[2];
      for (index_t d = 0; d < features; ++d)
        y[d * whole.stride[3]] = before * y[d * whole.stride[3]] + added * x[d * part.stride[3]];
      s = both;
    }
  });
}

/// in: a tensor of order 4; out: a tensor of the same extents, to which it is added.
template <class T>
void add_positions(const native_call& call) {
  const strided &x = call.in[0], &y = call.out[0];
  const shape& e = x.extents;
  call.threads.parallel_for(e[0] * e[1], [&](index_t task, scratch_memory&) {
    const index_t b = task / e[1], t = task % e[1];
    for (index_t h = 0; h < e[2]; ++h) {
      const T* from = x.data<T>() + b * x.stride[0] + t * x.stride[1] + h * x.stride[2];
      T* to = y.data<T>() + b * y.stride[0] + t * y.stride[1] + h * y.stride[2];
      for (index_t d = 0; d < e[3]; ++d) to[d * y.stride[3]] += from[d * x.stride[3]];
    }
  });
}

#ifdef WEFT_COMPILED
extern template void merge_attention<float>(const native_call&);
extern template void merge_attention<double>(const native_call&);
extern template void add_positions<float>(const native_call&);
extern template void add_positions<double>(const native_call&);
#endif

}  // namespace WEFT_ISA
}  // namespace weft::cpu
