// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/mesh.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/parallel/mesh.hpp>

namespace weft {

WEFT_DEFINE std::string to_string(const mesh_sizes& sizes) {
  std::string text;
  for (const mesh_axis a : mesh_axes) {
    if (sizes.of(a) == 1) continue;
    text += (text.empty() ? "" : " x ") + std::string(name_of(a)) + " " + std::to_string(sizes.of(a));
  }
  return text.empty() ? "1 rank" : text;
}

WEFT_DEFINE const mesh_sizes& check_mesh(const mesh_sizes& sizes, int ranks) {
  for (const mesh_axis a : mesh_axes)
    if (sizes.of(a) < 1)
      refuse<usage_error>({"weft: mesh: ", name_of(a), " is ", sizes.of(a), ": expected 1 or more"});
  if (sizes.ranks() != ranks)
    refuse<usage_error>(
        {"weft: mesh: ", weft::to_string(sizes), " needs ", sizes.ranks(), " ranks, but there are ", ranks});
  return sizes;
}

WEFT_DEFINE std::shared_ptr<communicator> group_along(communicator& ranks, const mesh_sizes& sizes,
                                                      mesh_axis first, mesh_axis last, const comm_options& o,
                                                      bool apart) {
  int count = 1;
  for (const mesh_axis a : mesh_axes)
    if (a >= first && a <= last) count *= sizes.of(a);
  if (count == 1) return std::make_shared<self_communicator>();
  if (count == ranks.size() && !apart) return {std::shared_ptr<void>(), &ranks};
  return ranks.axis(count, sizes.stride(last), o);
}

WEFT_DEFINE rank_mesh::rank_mesh(communicator& ranks, const mesh_sizes& sizes, const comm_options& o)
    : ranks_(&ranks), sizes_(check_mesh(sizes, ranks.size())) {
  for (const mesh_axis a : mesh_axes)
    groups_[static_cast<std::size_t>(a)] = group_along(ranks, sizes_, a, a, o);
}

WEFT_DEFINE std::string rank_mesh::to_string() const {
  std::string text;
  for (int r = 0; r < ranks_->size(); ++r) {
    std::string line;
    for (const mesh_axis a : mesh_axes)
      if (sizes_.of(a) > 1)
        line += (line.empty() ? "" : ", ") + std::string(name_of(a)) + " " +
                std::to_string(sizes_.coordinate(r, a));
    text += "rank " + std::to_string(r) + (line.empty() ? "" : ": ") + line + "\n";
  }
  return text;
}

}  // namespace weft
