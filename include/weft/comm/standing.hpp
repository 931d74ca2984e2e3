// SPDX-License-Identifier: MIT
// The standing of a rank: what it has posted and what it waits in; and, from the standings of all ranks,
// which ranks keep another one waiting.
//
// A waiting rank is not the cause: it waits for others. Following these dependences ends at ranks that do not
// wait, across all groups.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace weft::detail {

/// A wait of a rank. Ranks are numbered as in the world, whichever group waits.
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

  bool has_posted(const rank_wait& w) const {
    const auto found = posted.find(w.group);
    return w.number != rank_wait::message && (found == posted.end() ? -1 : found->second) > w.number;
  }
};

/// Standings by rank; none for ranks about which nothing is known.
using rank_standings = std::vector<std::optional<rank_standing>>;

/// The other ranks for which `w`, a wait of `rank`, waits.
inline std::vector<int> waited_for(const rank_wait& w, int rank, const rank_standings& all) {
  std::vector<int> ranks;
  for (const int m : w.members) {
    if (m == rank || m < 0 || m >= static_cast<int>(all.size())) continue;
    const auto& other = all[static_cast<std::size_t>(m)];
    if (!other || !other->has_posted(w)) ranks.push_back(m);
  }
  return ranks;
}

/// The ranks at which the dependences from `w` of `rank` end, in order. If they form a cycle, the ranks for
/// which `rank` itself waits.
inline std::vector<int> keep_waiting(const rank_wait& w, int rank, const rank_standings& all) {
  const std::vector<int> first = waited_for(w, rank, all);
  std::vector<int> found, next = first;
  std::vector<bool> seen(all.size());
  while (!next.empty()) {
    const int r = next.back();
    next.pop_back();
    if (seen[static_cast<std::size_t>(r)]) continue;
    seen[static_cast<std::size_t>(r)] = true;
    const auto& standing = all[static_cast<std::size_t>(r)];
    if (!standing || !standing->waits) {
      found.push_back(r);
      continue;
    }
    const std::vector<int> further = waited_for(*standing->waits, r, all);
    next.insert(next.end(), further.begin(), further.end());
  }
  std::sort(found.begin(), found.end());
  return found.empty() ? first : found;
}

inline std::string names_of(const std::vector<int>& ranks) {
  std::string t;
  for (const int r : ranks) (t += t.empty() ? "rank " : ", rank ").append(std::to_string(r));
  return t;
}

/// What keeps ranks apart that all answer. After the start each connection is known to lead to its rank.
inline std::string apart(const rank_wait& w) {
  return w.number == rank_wait::connecting
             ? "the network between them, or a stranger who came first to a port of a rank"
             : "the network between them";
}

/// The report of `rank`, which has waited for `limit` ms in `w`. `silent`: ranks that did not report their
/// standing; if there are any, they are the cause.
inline std::string late_report(const rank_wait& w, int rank, std::int64_t limit, const rank_standings& all,
                               const std::vector<int>& silent = {}) {
  std::string text =
      "weft: rank " + std::to_string(rank) + " waited " + std::to_string(limit) + " ms in " + w.doing;
  const std::vector<int> missing = silent.empty() ? keep_waiting(w, rank, all) : silent;
  if (missing.empty()) text += "; all ranks are there, the data is not: " + apart(w);
  else text += "; not there: " + names_of(missing);
  if (!silent.empty())
    text += silent.size() > 1 ? ", which do not answer: stopped or cut off"
                              : ", which does not answer: stopped or cut off";
  text += "\nlast operations:";
  for (std::size_t r = 0; r < all.size(); ++r)
    text += "\n  rank " + std::to_string(r) + ": " + (all[r] ? all[r]->last : "unknown");
  return text;
}

}  // namespace weft::detail
