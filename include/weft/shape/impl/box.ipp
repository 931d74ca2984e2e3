// SPDX-License-Identifier: MIT
// Definitions of <weft/shape/box.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/shape/box.hpp>

namespace weft {

WEFT_DEFINE std::string to_string(const box& b) {
  std::string text = "[";
  for (int d = 0; d < b.offset.order; ++d)
    text += std::string(d ? ", " : "") + std::to_string(b.offset[d]) + ":" +
            std::to_string(b.offset[d] + b.extents[d]);
  return text + "]";
}

namespace detail {

WEFT_DEFINE index_t first_sum(const std::vector<signed_box>& boxes, int dim, shape& at) {
  index_t sum = 0;
  if (dim == at.order) {
    for (const signed_box& b : boxes) sum += b.sign;
    return sum;
  }
  std::vector<std::pair<index_t, signed_box>> ends;  // where boxes begin, and where they have ended
  for (const auto& [of, sign] : boxes) {
    ends.push_back({of->offset[dim], {of, sign}});
    ends.push_back({of->offset[dim] + of->extents[dim], {of, -sign}});
  }
  std::sort(ends.begin(), ends.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<signed_box> here;
  for (auto end = ends.begin(); end != ends.end() && end->first < ends.back().first;) {
    here.clear();
    for (at[dim] = end->first; end->first == at[dim]; ++end) here.push_back(end->second);
    if ((sum = first_sum(here, dim + 1, at)) != 0) return sum;
  }
  return 0;  // all boxes have ended at the last one, so nothing changed before it
}

WEFT_DEFINE box grown(box from, const std::vector<box>& boxes, const shape& whole) {
  for (int d = whole.order - 1; d >= 0; --d) {
    const index_t begin = from.offset[d];
    from.extents[d] = whole[d] - begin;
    for (const box& b : boxes)
      if (intersection(from, b).size() > 0) from.extents[d] = b.offset[d] - begin;
  }
  return from;
}

}  // namespace detail

WEFT_DEFINE std::optional<tiling_fault> find_tiling_fault(const std::vector<box>& boxes, const shape& whole) {
  const box all = whole_box(whole);
  std::vector<detail::signed_box> counted{{&all, -1}};
  for (const box& b : boxes)
    if (b.size() > 0) counted.push_back({&b, 1});
  if (all.size() == 0) return {};
  box at = all;
  for (int d = 0; d < whole.order; ++d) at.extents[d] = 1;
  const index_t sum = detail::first_sum(counted, 0, at.offset);
  if (sum == 0) return {};
  if (sum < 0) return tiling_fault{detail::grown(at, boxes, whole), true};
  const auto has = [&](const box& b) { return intersection(at, b).size() > 0; };
  const auto first = std::find_if(boxes.begin(), boxes.end(), has);
  const auto second = std::find_if(first + 1, boxes.end(), has);
  const auto index_of = [&](auto i) { return static_cast<std::size_t>(i - boxes.begin()); };
  return tiling_fault{intersection(*first, *second), false, index_of(first), index_of(second)};
}

}  // namespace weft
