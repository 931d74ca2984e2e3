// SPDX-License-Identifier: MIT
// Random elements on the CPU: bits by logical element, so that threads do not matter.
#pragma once

#include <algorithm>

#include <weft/base/philox.hpp>
#include <weft/device/cpu/executor.hpp>
#include <weft/device/native.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

/// out: uniform in [0, 1), 24 bits each. Attribute 0 tells this op from others of its program.
inline void uniform(const native_call& call) {
  const strided& out = call.out[0];
  const philox_key key = key_of(mix(call.random, static_cast<std::uint64_t>(call.at[0])));
  const index_t groups = (out.size() + 3) / 4;
  const index_t tasks = std::clamp<index_t>(groups / 4096, 1, 16);
  visit_type(out.type, [&]<class T>(T) {
    call.threads.parallel_for(tasks, [&](index_t task, scratch_memory&) {
      for (index_t g = groups * task / tasks; g < groups * (task + 1) / tasks; ++g) {
        const auto words = philox(key, static_cast<std::uint64_t>(g));
        for (index_t i = 4 * g; i < std::min(4 * g + 4, out.size()); ++i)
          out.data<T>()[i] = static_cast<T>(unit_interval(words[static_cast<std::size_t>(i % 4)]));
      }
    });
  });
}

}  // namespace WEFT_ISA
}  // namespace weft::cpu
