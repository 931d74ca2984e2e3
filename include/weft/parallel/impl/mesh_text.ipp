// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/mesh_text.hpp>.
#pragma once

#include <algorithm>

#include <weft/base/config.hpp>
#include <weft/base/number.hpp>
#include <weft/parallel/mesh_text.hpp>

namespace weft {

WEFT_DEFINE mesh_sizes mesh_from_text(std::string_view text) {
  const auto refuse = [&](const std::string& why) {
    weft::refuse<usage_error>({"weft: mesh \"", text.substr(0, 60), "\": ", why});
  };
  mesh_sizes sizes;
  bool given[std::size(mesh_axes)] = {}, has_auto = false;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string_view part = text.substr(at, end - at), name = part.substr(0, part.find('='));
    const std::string shown = "\"" + std::string(part.substr(0, 20)) + "\"";
    at = end + 1;
    const auto* const axis = std::find_if(std::begin(mesh_axes), std::end(mesh_axes),
                                          [&](mesh_axis a) { return name == name_of(a); });
    if (axis == std::end(mesh_axes) || name.size() == part.size())
      refuse(shown + " must be AXIS=SIZE with an axis of pp, dp, fsdp, cp, ep, tp, as in pp=2,dp=4");
    const std::string_view written = part.substr(name.size() + 1);
    const bool is_auto = written == "auto";
    const int size = is_auto ? 0 : detail::parse_number<int>(written).value_or(0);
    if (!is_auto && size < 1) refuse(shown + " must have a size of 1 or more, or auto");
    if (is_auto && std::exchange(has_auto, true)) refuse("only one axis can be auto");
    if (std::exchange(given[static_cast<int>(*axis)], true))
      refuse("the axis " + std::string(name) + " is given twice");
    sizes.of(*axis) = size;
  }
  return sizes;
}

WEFT_DEFINE mesh_sizes with_ranks(mesh_sizes sizes, int ranks) {
  for (const mesh_axis a : mesh_axes) {
    if (sizes.of(a) != 0) continue;
    sizes.of(a) = 1;
    const std::int64_t others = sizes.ranks();
    if (ranks < 1 || others < 1 || ranks % others != 0)
      weft::refuse<usage_error>({"weft: mesh: ", to_string(sizes), " with ", name_of(a),
                                 " auto needs a multiple of ", others, " ranks, but there are ", ranks});
    sizes.of(a) = ranks / static_cast<int>(others);
  }
  return check_mesh(sizes, ranks);
}

WEFT_DEFINE std::string to_mesh_text(const mesh_sizes& sizes) {
  std::string text;
  for (const mesh_axis a : mesh_axes)
    if (sizes.of(a) != 1)
      text += (text.empty() ? "" : ",") + std::string(name_of(a)) + "=" +
              (sizes.of(a) == 0 ? "auto" : std::to_string(sizes.of(a)));
  return text.empty() ? "pp=1" : text;
}

}  // namespace weft
