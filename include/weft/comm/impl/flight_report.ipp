// SPDX-License-Identifier: MIT
// Definitions of <weft/comm/flight_report.hpp>.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include <weft/base/config.hpp>
#include <weft/comm/flight_report.hpp>

namespace weft {
namespace detail {

WEFT_DEFINE bool flight_summary::add(const std::string& bytes) {
  if (bytes.size() != sizeof(flight_file)) return false;
  if (std::memcmp(bytes.data(), flight_magic, sizeof flight_magic) != 0) return false;
  std::int32_t rank = 0;
  std::memcpy(&rank, bytes.data() + offsetof(flight_file, rank), sizeof rank);
  rank_record& r = ranks_[rank];
  for (std::size_t i = 0; i < flight_records; ++i) {
    flight_record one;
    std::memcpy(&one, bytes.data() + offsetof(flight_file, at) + i * sizeof one, sizeof one);
    if (one.order == 0) continue;
    if (one.order > r.last.order) r.last = one;
    std::uint64_t& begun = r.begun_in[text_of(one.group)];
    if (one.number != flight_record::no_number) begun = std::max(begun, one.number + 1);
    if (one.ended == 0) r.under_way.push_back(one);
  }
  return true;
}

WEFT_DEFINE std::string flight_summary::report() const {
  std::string text;
  for (const auto& [rank, r] : ranks_) {
    text += "rank " + std::to_string(rank) + ": ";
    if (r.last.order == 0) text += "no operation yet\n";
    else text += (r.last.ended ? "ended " : "waits in ") + described(r.last) + "\n";
  }
  std::set<std::string> said;
  for (const auto& [rank, r] : ranks_)
    for (const flight_record& waits : r.under_way)
      for (const auto& [other, o] : ranks_) {
        if (other == rank || !is_behind(o, waits)) continue;
        const std::string line =
            "rank " + std::to_string(other) + " has not begun " + described(waits) + "\n";
        if (said.insert(line).second) text += line;
      }
  return text;
}

WEFT_DEFINE bool flight_summary::is_behind(const rank_record& r, const flight_record& operation) {
  if (operation.number == flight_record::no_number) return false;
  const std::string group = text_of(operation.group);
  const auto found = r.begun_in.find(group);
  return found == r.begun_in.end() ? group == "world" : found->second <= operation.number;
}

}  // namespace detail

WEFT_DEFINE std::string flight_report(const std::string& folder) {
  detail::flight_summary all;
  std::string report;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    if (entry.path().extension() != ".flight") continue;
    std::string bytes(sizeof(detail::flight_file) + 1, '\0');
    if (!entry.is_regular_file(none)) {
      bytes.clear();
    } else {
      std::ifstream in(entry.path(), std::ios::binary);
      in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
      bytes.resize(static_cast<std::size_t>(in.gcount()));
    }
    if (!all.add(bytes)) report += entry.path().string() + ": is not a recording\n";
  }
  return report + (all.empty() ? folder + ": no recordings\n" : all.report());
}

}  // namespace weft
