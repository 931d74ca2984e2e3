// SPDX-License-Identifier: MIT
// Definitions of <weft/device/cpu/random.hpp>.
#pragma once

#include <algorithm>

#include <weft/base/config.hpp>
#include <weft/device/cpu/random.hpp>

namespace weft {
namespace cpu {
inline namespace WEFT_ISA {

WEFT_DEFINE void uniform(const native_call& call) {
  const strided& out = call.out[0];
  const philox_key key = key_of(mix(call.random, static_cast<std::uint64_t>(call.at[0])));
  constexpr index_t piece = 1 << 14;
  const index_t tasks = (out.size() + piece - 1) / piece;
  visit_type(out.type, [&]<class T>(T) {
    call.threads.parallel_for(tasks, [&](index_t task, scratch_memory&) {
      fill_uniform(key, task * piece, std::min(piece, out.size() - task * piece),
                   out.data<T>() + task * piece);
    });
  });
}

namespace detail {

WEFT_DEFINE void refuse_probability(double p, index_t position) {
  refuse<value_error>(
      {"weft: bernoulli: a probability of ", p, " at position ", position, " is not in [0, 1]"});
}

}  // namespace detail

WEFT_DEFINE void checked_probability(const native_call& call) {
  const strided &p = call.in[0], &out = call.out[0];
  const index_t tasks = p.size() < 65536 ? 1 : 16;
  visit_type(p.type, [&]<class T>(T) {
    call.threads.parallel_for(tasks, [&](index_t task, scratch_memory&) {
      for (index_t i = p.size() * task / tasks; i < p.size() * (task + 1) / tasks; ++i) {
        const T x = p.data<const T>()[element_offset(p.extents, p.stride, 0, p.extents.order, i)];
        if (!(x >= T{} && x <= T{1})) detail::refuse_probability(static_cast<double>(x), i);
        out.data<T>()[i] = x;
      }
    });
  });
}

}  // namespace WEFT_ISA
}  // namespace cpu
}  // namespace weft
