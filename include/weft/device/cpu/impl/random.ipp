// SPDX-License-Identifier: MIT
// Definitions of <weft/device/cpu/random.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/device/cpu/random.hpp>

namespace weft {
namespace cpu {
inline namespace WEFT_ISA {

namespace detail {

WEFT_DEFINE void refuse_probability(const char* op, double p, index_t position) {
  refuse<value_error>(
      {"weft: ", op, ": a probability of ", p, " at position ", position, " is not in [0, 1]"});
}

}  // namespace detail

}  // namespace WEFT_ISA
}  // namespace cpu
}  // namespace weft
