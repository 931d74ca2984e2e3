// SPDX-License-Identifier: MIT
// Definitions of <weft/device/cpu/random.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/device/cpu/random.hpp>

namespace weft {
namespace cpu {
inline namespace WEFT_ISA {

namespace detail {

WEFT_DEFINE void refuse_probability(index_t reader, double p, index_t position, index_t width) {
  const char* const op = probability_readers[reader];
  if (reader == 0)
    refuse<value_error>(
        {"weft: ", op, ": a probability of ", p, " at position ", position, " is not in [0, 1]"});
  if (p < 0)
    refuse<value_error>({"weft: ", op, ": a weight of ", p, " at position ", position, " is negative"});
  const index_t row = position / width;
  if (p == row_without_weight) refuse<value_error>({"weft: ", op, ": no weight of row ", row, " is above 0"});
  refuse<value_error>({"weft: ", op, ": a weight of row ", row, " is infinite or NaN"});
}

}  // namespace detail

}  // namespace WEFT_ISA
}  // namespace cpu
}  // namespace weft
