// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/divided_positions.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/parallel/divided_positions.hpp>

namespace weft {
namespace parallel {

WEFT_DEFINE strided range_of(strided t, const position_range& of, int dim) {
  t.pointer = static_cast<char*>(t.pointer) + of.first * t.stride[dim] * size_of(t.type);
  t.extents[dim] = of.count;
  return t;
}

WEFT_DEFINE void divided_positions::check(const device& where, const shape& extents,
                                          index_t positions) const {
  if (!where->host_accessible() && where->computes())
    refuse<device_error>({"weft: attention: on device ", where->name(),
                          ": positions are divided on devices whose memory the host can access"});
  if (!division_)
    throw usage_error(
        "weft: attention: the number of positions of all ranks is not known: call "
        "run.part_of_context(length) before");
  if (positions != division_->count(rank()))
    refuse<usage_error>({"weft: attention: an operand of shape ", to_string(extents), " has ", positions,
                         " positions: this rank has ", division_->count(rank()), " of ",
                         division_->length()});
}

}  // namespace parallel
}  // namespace weft
