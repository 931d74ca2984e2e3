// SPDX-License-Identifier: MIT
// Analysis of the recordings of ranks: the last operation of each rank, and the ranks that others wait for.
//
//   std::puts(flight_report("flight").c_str());
//
// Files are untrusted: the report lists those that are not recordings, and shows characters other than
// printable ASCII as '?'.
#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <vector>

#include <weft/comm/flight_recorder.hpp>

namespace weft {

namespace detail {

class flight_summary {
 public:
  /// Adds a recording; false if the bytes are not one.
  bool add(const std::string& bytes) {
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
      std::uint64_t& most = r.begun_in[text_of(one.group)];
      most = std::max(most, one.number);
      if (one.ended == 0) r.under_way.push_back(one);
    }
    return true;
  }
  bool empty() const { return ranks_.empty(); }

  std::string report() const {
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

 private:
  struct rank_record {
    flight_record last;                             // begun last
    std::map<std::string, std::uint64_t> begun_in;  // highest number by group
    std::vector<flight_record> under_way;
  };

  /// Whether a rank of the operation's group has not yet begun it.
  static bool is_behind(const rank_record& r, const flight_record& operation) {
    const auto found = r.begun_in.find(text_of(operation.group));
    return found != r.begun_in.end() && found->second < operation.number;
  }
  static std::string described(const flight_record& r) {
    return text_of(r.group) + " #" + std::to_string(r.number) + " " + text_of(r.text);
  }
  template <std::size_t N>
  static std::string text_of(const char (&from)[N]) {
    std::string text(from, ::strnlen(from, N));
    for (char& c : text)  // no terminal escape sequences
      if (c < ' ' || c > '~') c = '?';
    return text;
  }

  std::map<int, rank_record> ranks_;
};

}  // namespace detail

/// A report on the recordings in a folder. Does not throw for invalid files; reads only regular files, at
/// most the size of a recording.
inline std::string flight_report(const std::string& folder) {
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
    if (!all.add(bytes)) report += entry.path().string() + ": is no recording\n";
  }
  return report + (all.empty() ? folder + ": no recordings\n" : all.report());
}

}  // namespace weft
