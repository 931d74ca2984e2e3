// SPDX-License-Identifier: MIT
// Definitions of <weft/comm/standing.hpp>.
#pragma once

#include <algorithm>

#include <weft/base/config.hpp>
#include <weft/comm/standing.hpp>

namespace weft {
namespace detail {

WEFT_DEFINE bool rank_standing::has_posted(const rank_wait& w) const {
  const auto found = posted.find(w.group);
  return w.number != rank_wait::message && (found == posted.end() ? -1 : found->second) > w.number;
}

WEFT_DEFINE std::vector<int> waited_for(const rank_wait& w, int rank, const rank_standings& all) {
  std::vector<int> ranks;
  for (const int m : w.members) {
    if (m == rank || m < 0 || m >= static_cast<int>(all.size())) continue;
    const auto& other = all[static_cast<std::size_t>(m)];
    if (!other || !other->has_posted(w)) ranks.push_back(m);
  }
  return ranks;
}

WEFT_DEFINE std::vector<int> keep_waiting(const rank_wait& w, int rank, const rank_standings& all) {
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

WEFT_DEFINE std::string names_of(const std::vector<int>& ranks) {
  std::string t;
  for (const int r : ranks) (t += t.empty() ? "rank " : ", rank ").append(std::to_string(r));
  return t;
}

WEFT_DEFINE std::string apart(const rank_wait& w) {
  return w.number == rank_wait::connecting
             ? "the network between them, or another process that connected first to a rank's port"
             : "the network between them";
}

WEFT_DEFINE std::string late_report(const rank_wait& w, int rank, std::int64_t limit,
                                    const rank_standings& all, const std::vector<int>& silent) {
  std::string text =
      "weft: rank " + std::to_string(rank) + " waited " + std::to_string(limit) + " ms in " + w.doing;
  const std::vector<int> missing = silent.empty() ? keep_waiting(w, rank, all) : silent;
  if (missing.empty()) text += "; all ranks are there, but the data is not: " + apart(w);
  else text += "; not there: " + names_of(missing);
  if (!silent.empty())
    text += silent.size() > 1 ? ", which do not answer: stopped or cut off"
                              : ", which does not answer: stopped or cut off";
  text += "\nlast operations:";
  for (std::size_t r = 0; r < all.size(); ++r)
    text += "\n  rank " + std::to_string(r) + ": " + (all[r] ? all[r]->last : "unknown");
  return text;
}

}  // namespace detail
}  // namespace weft
