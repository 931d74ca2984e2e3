// SPDX-License-Identifier: MIT
// Division of a group by colors, for backends whose groups are lists of members.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include <weft/comm/communicator.hpp>

namespace weft::detail {

/// The ranks of a group that have the color of this one; `in_world`: the group's ranks in the world.
/// Collective; `mine` is a number that is not used by any group yet.
struct split_of_ranks {
  split_of_ranks(communicator& ranks, const std::vector<int>& in_world, int color, int key,
                 std::uint64_t mine, comm_options o) {
    constexpr std::size_t fields = 3;
    const std::vector<std::int64_t> own{color, key, static_cast<std::int64_t>(mine)};
    std::vector<std::int64_t> all(fields * static_cast<std::size_t>(ranks.size()));
    o.control = true;
    ranks.all_gather(own, all, {}, std::move(o)).wait();
    std::vector<std::pair<std::int64_t, int>> in_order;  // key, rank
    for (int r = 0; r < ranks.size(); ++r)
      if (const auto at = fields * static_cast<std::size_t>(r); all[at] == color)
        in_order.emplace_back(all[at + 1], r);
    std::sort(in_order.begin(), in_order.end());
    for (const auto& [k, r] : in_order) {
      if (r == ranks.rank()) rank = static_cast<int>(members.size());
      members.push_back(in_world[static_cast<std::size_t>(r)]);
    }
    number = static_cast<std::uint64_t>(all[2]);
  }

  std::vector<int> members;  // by their ranks in the world
  std::uint64_t number;      // that of rank 0, for all groups of this division
  int rank = 0;              // in the new group
};

}  // namespace weft::detail
