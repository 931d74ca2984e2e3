// SPDX-License-Identifier: MIT
// The standing of a rank: the operations that it has posted and the one that it waits in; and, from the
// standings of all ranks, which ranks keep another one waiting.
//
// A waiting rank is not the cause: it waits for others. Following these dependences ends at ranks that do not
// wait, across all groups.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace weft::detail {

/// A wait of a rank. Ranks are numbered as in the world, not as in the group.
struct rank_wait {
  static constexpr std::int64_t connecting = -1;  // a group is being formed
  static constexpr std::int64_t message = std::int64_t{1} << 62;

  std::string group;
  std::int64_t number = 0;   // of the collective in its group, or one of the above
  std::vector<int> members;  // of the group; for a message, the peer
  std::string doing;         // for messages to people
};

struct rank_standing {
  std::map<std::string, std::int64_t> posted;  // collectives, by group
  std::optional<rank_wait> waits;
  std::string last = "nothing yet";  // last operation, for messages to people

  bool has_posted(const rank_wait& w) const;
};

/// Standings by rank; nullopt for ranks about which nothing is known.
using rank_standings = std::vector<std::optional<rank_standing>>;

/// The other ranks for which `w`, a wait of `rank`, waits.
std::vector<int> waited_for(const rank_wait& w, int rank, const rank_standings& all);

/// The ranks at which the dependences from `w` of `rank` end, in order. If they form a cycle, the ranks for
/// which `rank` itself waits.
std::vector<int> keep_waiting(const rank_wait& w, int rank, const rank_standings& all);

std::string names_of(const std::vector<int>& ranks);

/// The reason why ranks that all answer do not meet. After the start-up each connection is known to lead to
/// its rank.
std::string apart(const rank_wait& w);

/// The report of `rank`, which has waited for `limit` ms in `w`. `silent`: ranks that did not report their
/// standing; if there are any, they are the cause.
std::string late_report(const rank_wait& w, int rank, std::int64_t limit, const rank_standings& all,
                        const std::vector<int>& silent = {});

}  // namespace weft::detail

#ifndef WEFT_COMPILED
#include <weft/comm/impl/standing.ipp>
#endif
