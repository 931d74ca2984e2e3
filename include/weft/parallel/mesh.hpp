// SPDX-License-Identifier: MIT
// Mesh of ranks: the coordinates of each rank along the axes of a parallel strategy, and the groups of ranks
// along each axis.
//
//   rank_mesh mesh(ranks, {.pp = 2, .dp = 4});            // 8 ranks
//   communicator& stages = mesh.along(mesh_axis::pp);     // the two ranks with this rank's dp coordinate
//
// Axis pp is outermost and tp innermost, so that the ranks that exchange most data are on one machine: rank =
// ((((pp * DP + dp) * FSDP + fsdp) * CP + cp) * EP + ep) * TP + tp.
#pragma once

#include <array>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <weft/comm/self.hpp>

namespace weft {

/// The axes of a mesh, outermost first: pipeline stages, data-parallel replicas, shards of parameters, parts
/// of the context, experts, parts of a layer (tensor parallelism).
enum class mesh_axis : std::uint8_t { pp, dp, fsdp, cp, ep, tp };
inline constexpr mesh_axis mesh_axes[] = {mesh_axis::pp, mesh_axis::dp, mesh_axis::fsdp,
                                          mesh_axis::cp, mesh_axis::ep, mesh_axis::tp};

constexpr const char* name_of(mesh_axis a) {
  constexpr const char* names[] = {"pp", "dp", "fsdp", "cp", "ep", "tp"};
  return names[static_cast<int>(a)];
}

/// Bytes along each axis.
using axis_bytes = std::array<std::int64_t, std::size(mesh_axes)>;
inline axis_bytes difference(axis_bytes after, const axis_bytes& before) {
  for (std::size_t a = 0; a < after.size(); ++a) after[a] -= before[a];
  return after;
}

/// The number of ranks along each axis.
struct mesh_sizes {
  int pp = 1, dp = 1, fsdp = 1, cp = 1, ep = 1, tp = 1;

  constexpr int& of(mesh_axis a) {
    int* const all[] = {&pp, &dp, &fsdp, &cp, &ep, &tp};
    return *all[static_cast<int>(a)];
  }
  constexpr int of(mesh_axis a) const { return mesh_sizes(*this).of(a); }
  /// The total number of ranks. For a product beyond 2^31, the result is unspecified but beyond 2^31.
  constexpr std::int64_t ranks() const {
    std::int64_t n = 1;
    for (const mesh_axis a : mesh_axes)
      if (n >> 31 == 0) n *= of(a);
    return n;
  }
  /// The difference of the rank numbers of neighbours along `a`.
  constexpr int stride(mesh_axis a) const {
    int n = 1;
    for (const mesh_axis inner : mesh_axes)
      if (inner > a) n *= of(inner);
    return n;
  }
  /// The coordinate of `rank` along `a`.
  constexpr int coordinate(int rank, mesh_axis a) const { return rank / stride(a) % of(a); }

  bool operator==(const mesh_sizes&) const = default;
};

/// For example "pp 2 x dp 4". Axes with one rank are omitted; "1 rank" if all are.
[[gnu::cold]] std::string to_string(const mesh_sizes& sizes);

/// Returns `sizes` if they multiply to `ranks`. Throws usage_error if a size is less than 1 or the product
/// differs.
[[gnu::cold]] const mesh_sizes& check_mesh(const mesh_sizes& sizes, int ranks);

/// The ranks whose coordinates differ from those of this rank along the axes from `first` to `last` only. A
/// group of one rank sends no messages. The group of all ranks is `ranks` itself, not owned; `apart` makes it
/// a separate group, for messages with an order of their own. Collective.
[[gnu::cold]] std::shared_ptr<communicator> group_along(communicator& ranks, const mesh_sizes& sizes,
                                                        mesh_axis first, mesh_axis last,
                                                        const comm_options& o = {}, bool apart = false);

/// The coordinates of this rank in a mesh, and its groups. Operations in groups of one rank send nothing.
class rank_mesh {
 public:
  /// Collective over `ranks`, which must outlive the mesh. Throws usage_error if a size is less than 1 or the
  /// product of the sizes is not the number of ranks.
  [[gnu::cold]] rank_mesh(communicator& ranks, const mesh_sizes& sizes, const comm_options& o = {});

  const mesh_sizes& sizes() const { return sizes_; }
  int size(mesh_axis a) const { return sizes_.of(a); }
  int coordinate(mesh_axis a) const { return sizes_.coordinate(ranks_->rank(), a); }

  /// All ranks.
  communicator& all() const { return *ranks_; }
  /// The ranks whose coordinates differ from those of this rank along `a` only, in the order of `a`.
  communicator& along(mesh_axis a) const { return *groups_[static_cast<std::size_t>(a)]; }
  /// The ranks whose coordinates differ along the axes from `first` to `last` only. The ranks from dp to ep
  /// process different data. Collective; creates a new group on each call.
  std::shared_ptr<communicator> along(mesh_axis first, mesh_axis last, const comm_options& o = {}) const {
    return group_along(*ranks_, sizes_, first, last, o);
  }

  /// One line for each rank, for example "rank 5: pp 1, dp 0, tp 1". Axes with one rank are omitted.
  [[gnu::cold]] std::string to_string() const;

 private:
  communicator* ranks_;
  mesh_sizes sizes_;
  std::array<std::shared_ptr<communicator>, std::size(mesh_axes)> groups_;
};

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/mesh.ipp>
#endif
