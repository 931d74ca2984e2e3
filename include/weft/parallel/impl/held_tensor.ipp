// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/held_tensor.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/parallel/held_tensor.hpp>

namespace weft {
namespace parallel {

WEFT_DEFINE std::vector<stored_box> boxes_of_part(const shape& whole, const placement& p, int ranks, int rank,
                                                  index_t first, const shape& local) {
  const int rows = 0, d = p.is_divided() ? p.dim : rows;
  const index_t group = whole[d] / p.groups;
  const auto [begin, count] =
      p.is_divided() ? indices_in_group(p, group, ranks, rank) : indices_of_part{0, group};
  std::vector<stored_box> all;
  for (index_t g = 0; g < p.groups; ++g) {
    stored_box b(box{{local.order, {}}, local});
    b.where.offset[rows] = first;
    // The indices of the part in this group, and those among them that `local` has.
    index_t low = g * count, high = low + count;
    if (d == rows) low = std::max(low, first), high = std::min(high, first + local[rows]);
    if (high <= low && p.groups > 1) continue;
    b.where.offset[d] = g * group + begin + low - g * count;
    b.where.extents[d] = std::max<index_t>(high - low, 0);
    b.at[d] = d == rows ? low - first : low;
    all.push_back(b);
  }
  return all;
}

}  // namespace parallel
}  // namespace weft
