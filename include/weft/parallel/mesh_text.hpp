// SPDX-License-Identifier: MIT
// Meshes as text, for command lines.
//
//   mesh_sizes sizes = mesh_from_text("pp=2,dp=4");
//   mesh_sizes sizes = with_ranks(mesh_from_text("pp=2,dp=auto"), 8);
#pragma once

#include <string_view>
#include <utility>

#include <weft/parallel/mesh.hpp>

namespace weft {

/// The mesh that `text` describes: AXIS=SIZE for each axis with several ranks, in any order, separated by
/// commas; axes are pp, dp, fsdp, cp, ep and tp. One size may be `auto`, which is 0 in the result. Throws
/// usage_error quoting the invalid text.
mesh_sizes mesh_from_text(std::string_view text);

/// `sizes`, with the size 0 (auto) replaced so that the mesh has `ranks` ranks. Throws usage_error if no size
/// of that axis does that.
mesh_sizes with_ranks(mesh_sizes sizes, int ranks);
/// The text of a mesh that mesh_from_text() reads.
std::string to_mesh_text(const mesh_sizes& sizes);

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/mesh_text.ipp>
#endif
