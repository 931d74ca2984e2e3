// SPDX-License-Identifier: MIT
// Definitions of <weft/shape/shape.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/shape/shape.hpp>

namespace weft {

WEFT_DEFINE std::string to_string(const shape& s) {
  std::string text = "[";
  for (int i = 0; i < s.order; ++i) {
    if (i) text += ", ";
    (s[i] < 0 ? message_part("?") : message_part(s[i])).append_to(text);
  }
  return text + "]";
}

namespace detail {

WEFT_DEFINE void refuse_size(const shape& s) {
  refuse<shape_error>({"weft: the number of elements of shape ", s, " does not fit into 64 bits"});
}

WEFT_DEFINE void refuse_order(int order, std::size_t extents) {
  refuse<shape_error>({"weft: a shape of ", order, " dims with ", extents, " extents; a tensor has at most ",
                       max_order, " dims"});
}

WEFT_DEFINE void refuse_bytes(const shape& s, dtype t) {
  refuse<shape_error>({"weft: the bytes of shape ", s, " and type ", name_of(t), " do not fit into 64 bits"});
}

WEFT_DEFINE void refuse_position(const shape& s, int dim, index_t i) {
  const std::string extent = std::to_string(s[dim]);
  throw value_error("weft: index " + std::to_string(i) + " of dim " + std::to_string(dim) +
                    " is outside of [-" + extent + ", " + extent + ") for a tensor of shape " + to_string(s));
}

}  // namespace detail

WEFT_DEFINE std::size_t bytes_of(const shape& s, dtype t) {
  index_t bytes = 0;
  if (!detail::multiply_checked(s.size(), size_of(t), bytes)) detail::refuse_bytes(s, t);
  return static_cast<std::size_t>(bytes);
}

}  // namespace weft
