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

WEFT_DEFINE void append_rest(box from, const box& hole, std::vector<box>& to) {
  for (int d = 0; d < from.offset.order; ++d) {
    const index_t begin = from.offset[d], end = begin + from.extents[d];
    const index_t hole_end = hole.offset[d] + hole.extents[d];
    from.offset[d] = hole_end, from.extents[d] = end - hole_end;
    if (from.extents[d] > 0) to.push_back(from);
    from.offset[d] = begin, from.extents[d] = hole.offset[d] - begin;
    if (from.extents[d] > 0) to.push_back(from);
    from.offset[d] = hole.offset[d], from.extents[d] = hole.extents[d];
  }
}

WEFT_DEFINE bool begins_before(const box& a, const box& b) {
  return std::lexicographical_compare(a.offset.extent, a.offset.extent + max_order, b.offset.extent,
                                      b.offset.extent + max_order);
}

}  // namespace detail

WEFT_DEFINE std::optional<tiling_fault> find_tiling_fault(const std::vector<box>& boxes, const shape& whole) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < boxes.size(); ++i)
    if (boxes[i].size() > 0) order.push_back(i);
  std::sort(order.begin(), order.end(), [&](std::size_t i, std::size_t j) {
    return detail::begins_before(boxes[i], boxes[j]) || (i < j && !detail::begins_before(boxes[j], boxes[i]));
  });
  std::vector<box> left, rest;  // what no box has so far
  if (whole.size() > 0) left.push_back(whole_box(whole));
  for (std::size_t n = 0; n < order.size(); ++n) {
    const box& b = boxes[order[n]];
    index_t found = 0;
    rest.clear();
    for (const box& l : left) {
      const box common = intersection(l, b);
      if (common.size() == 0) rest.push_back(l);
      else detail::append_rest(l, common, rest);
      found += common.size();
    }
    left.swap(rest);
    if (found == b.size()) continue;
    for (std::size_t m = 0; m < n; ++m)
      if (const box common = intersection(boxes[order[m]], b); common.size() > 0)
        return tiling_fault{common, false, order[m], order[n]};
  }
  if (left.empty()) return {};
  return tiling_fault{*std::min_element(left.begin(), left.end(), detail::begins_before), true};
}

}  // namespace weft
