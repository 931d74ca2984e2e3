// SPDX-License-Identifier: MIT
// Descriptions of operations that ranks in different processes exchange before data is sent: collectives
// compare their text; the two sides of a message, and of a part of an all_to_all, also their counts.
#pragma once

#include <weft/comm/operation.hpp>

namespace weft::detail {

struct fingerprint {
  std::int64_t count = 0;  // of a message, or of a part
  std::int32_t type = 0;
  char text[operation::most_text + 1] = {};

  fingerprint() = default;
  /// The description sent to rank `to` of the group.
  fingerprint(const operation& o, int to)
      : fingerprint(o.kind == collective::send         ? o.in.count
                    : o.kind == collective::all_to_all ? o.in_counts[static_cast<std::size_t>(to)]
                                                       : o.out.count,
                    static_cast<std::int32_t>(o.type()), o.text()) {}
  fingerprint(std::int64_t n, std::int32_t t, const std::string& all) : count(n), type(t) {
    std::copy_n(all.begin(), std::min(all.size(), sizeof text - 1), text);
  }
  std::string words() const { return {text, std::find(text, text + sizeof text - 1, '\0')}; }
  bool same_message(const fingerprint& other) const { return count == other.count && type == other.type; }
};

/// The error, naming the ranks at fault, from the descriptions of operation `number` that the ranks of a
/// group have sent to `rank`; empty if all agree. `members` are the ranks in the world.
inline std::string disagreement_of(const operation& o, const std::vector<fingerprint>& meant,
                                   const std::vector<int>& members, int rank, std::uint64_t number) {
  std::vector<std::string> texts;
  for (const fingerprint& f : meant) texts.push_back(f.words());
  std::string wrong = disagreement(texts, members, number);
  if (o.kind == collective::all_to_all && wrong.empty())
    for (std::size_t r = 0; r < meant.size() && wrong.empty(); ++r)
      wrong = part_disagreement(members[r], meant[r].count, members[static_cast<std::size_t>(rank)],
                                o.out_counts[r]);
  return wrong;
}

}  // namespace weft::detail
