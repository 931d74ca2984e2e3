// SPDX-License-Identifier: MIT
// The native ops for random numbers on the CPU.
#pragma once

#include <algorithm>

#include <weft/base/error.hpp>
#include <weft/device/cpu/executor.hpp>
#include <weft/device/native.hpp>
#include <weft/device/random.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

/// out: uniform in [0, 1) with 24 bits. Attribute 0 distinguishes this op from others in its program.
template <class T>
void uniform(const native_call& call) {
  const strided& out = call.out[0];
  const philox_key key = key_of(mix(call.random, static_cast<std::uint64_t>(call.at[0])));
  constexpr index_t piece = 1 << 14;
  const index_t tasks = (out.size() + piece - 1) / piece;
  call.threads.parallel_for(tasks, [&](index_t task, scratch_memory&) {
    fill_uniform(key, task * piece, std::min(piece, out.size() - task * piece),
                 out.data<T>() + task * piece);
  });
}

namespace detail {
/// `reader` is an index into probability_readers, and `width` the last extent.
[[noreturn, gnu::cold]] void refuse_probability(index_t reader, double p, index_t position, index_t width);
}  // namespace detail

/// in: p; out: a copy of p. Throws value_error unless all elements are in [0, 1]. v0: the op, an index into
/// probability_readers.
template <class T>
void checked_probability(const native_call& call) {
  const strided &p = call.in[0], &out = call.out[0];
  const index_t tasks = p.size() < 65536 ? 1 : 16;
  call.threads.parallel_for(tasks, [&](index_t task, scratch_memory&) {
    for (index_t i = p.size() * task / tasks; i < p.size() * (task + 1) / tasks; ++i) {
      const T x = p.data<const T>()[element_offset(p.extents, p.stride, 0, p.extents.order, i)];
      if (!(x >= T{} && x <= T{1}))
        detail::refuse_probability(call.at[0], static_cast<double>(x), i, p.extents.last());
      out.data<T>()[i] = x;
    }
  });
}

}  // namespace WEFT_ISA
}  // namespace weft::cpu

#ifndef WEFT_COMPILED
#include <weft/device/cpu/impl/random.ipp>
#endif
