// SPDX-License-Identifier: MIT
// Definitions of <weft/comm/operation.hpp>.
#pragma once

#include <cstdio>
#include <map>

#include <weft/base/config.hpp>
#include <weft/base/xxh64.hpp>
#include <weft/comm/operation.hpp>

namespace weft {

namespace detail {

WEFT_DEFINE std::string shortened(const std::string& text, std::size_t most) {
  if (text.size() <= most) return text;
  char middle[32];
  const int n =
      std::snprintf(middle, sizeof middle, "... (%016llx) ...", static_cast<unsigned long long>(xxh64(text)));
  const std::size_t kept = most - static_cast<std::size_t>(n), end = kept / 2;
  return text.substr(0, kept - end) + middle + text.substr(text.size() - end);
}

}  // namespace detail

WEFT_DEFINE std::string operation::text() const {
  std::string t = name_of(kind);
  t += "(";
  switch (kind) {
    case collective::all_reduce: t += std::string(name_of(op)) + ", " + amount(out.count); break;
    case collective::reduce:
      t += std::string(name_of(op)) + ", " + amount(out.count) + ", root " + std::to_string(root);
      break;
    case collective::reduce_scatter:
      t += std::string(name_of(op)) + ", " + amount(in.count) + parts(in_counts);
      break;
    case collective::broadcast: t += amount(out.count) + ", root " + std::to_string(root); break;
    case collective::all_gather: t += amount(out.count) + parts(out_counts); break;
    case collective::gather:
      t += amount(sum_of(out_counts)) + parts(out_counts) + ", root " + std::to_string(root);
      break;
    case collective::scatter:
      t += amount(sum_of(in_counts)) + parts(in_counts) + ", root " + std::to_string(root);
      break;
    case collective::all_to_all: t += name_of(type()); break;
    case collective::send:
      t += amount(in.count) + ", to " + std::to_string(root) + ", tag " + std::to_string(tag);
      break;
    case collective::receive:
      t += amount(out.count) + ", from " + std::to_string(root) + ", tag " + std::to_string(tag);
      break;
    default: break;
  }
  t += ")";
  if (!label.empty()) (t += " for ").append(label);
  if (step >= 0) (t += " in step ").append(std::to_string(step));
  if (space() == memory_space::device) t += ", in device memory";
  return detail::shortened(t, most_text);
}

WEFT_DEFINE bool operation::means_what(const operation& other) const {
  const bool same = kind == other.kind && type() == other.type() && op == other.op && root == other.root &&
                    label == other.label && step == other.step && space() == other.space();
  if (!same) return false;
  switch (kind) {
    case collective::all_reduce:
    case collective::reduce:
    case collective::broadcast: return out.count == other.out.count;
    case collective::reduce_scatter:
    case collective::scatter: return in_counts == other.in_counts;
    case collective::all_gather:
    case collective::gather: return out_counts == other.out_counts;
    case collective::all_to_all:
    case collective::barrier:
    case collective::split: return true;
    default: return false;
  }
}

WEFT_DEFINE std::string operation::parts(const rank_counts& counts) {
  std::string t;
  for (std::size_t i = 0, equal = 0; i < counts.size(); i += equal) {
    equal = 1;
    while (i + equal < counts.size() && counts[i + equal] == counts[i]) ++equal;
    if (equal < 4) equal = 1;
    t += i ? "+" : " = ";
    if (equal > 1) t += std::to_string(equal) + " x ";
    t += std::to_string(counts[i]);
  }
  return t;
}

WEFT_DEFINE std::string message_disagreement(int sender, const std::string& sent, int receiver,
                                             const std::string& received) {
  return "weft: rank " + std::to_string(sender) + " called " + sent + ", but rank " +
         std::to_string(receiver) + " called " + received;
}

WEFT_DEFINE std::string part_disagreement(int sender, index_t sent, int receiver, index_t expected) {
  if (sent == expected) return "";
  return "weft: all_to_all: rank " + std::to_string(sender) + " sends " + std::to_string(sent) +
         " elements to rank " + std::to_string(receiver) + ", which expects " + std::to_string(expected);
}

WEFT_DEFINE std::string disagreement(const std::vector<std::string>& texts, const std::vector<int>& members,
                                     std::uint64_t number) {
  std::map<std::string, std::vector<int>> by_text;
  for (std::size_t r = 0; r < texts.size(); ++r) by_text[texts[r]].push_back(members[r]);
  if (by_text.size() == 1) return "";
  std::string report = "weft: ranks disagree about operation #" + std::to_string(number) + ":";
  const auto most = std::max_element(by_text.begin(), by_text.end(), [](const auto& a, const auto& b) {
    return a.second.size() != b.second.size() ? a.second.size() < b.second.size() : a.second[0] > b.second[0];
  });
  for (const auto& [text, who] : by_text) {
    report += text == most->first ? "\n  most: rank" : "\n  at fault: rank";
    for (const int r : who) (report += " ").append(std::to_string(r));
    report += " called " + text;
  }
  return report;
}

}  // namespace weft
