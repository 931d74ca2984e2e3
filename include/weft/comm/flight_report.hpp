// SPDX-License-Identifier: MIT
// Analysis of the recordings of ranks: the last operation of each rank, and the ranks that others wait for.
//
//   std::puts(flight_report("flight").c_str());
//
// Files are untrusted: the report lists those that are not recordings, and shows characters other than
// printable ASCII as '?'.
#pragma once

#include <cstddef>
#include <iterator>
#include <map>
#include <vector>

#include <weft/comm/flight_recorder.hpp>

namespace weft {

namespace detail {

class flight_summary {
 public:
  /// Adds a recording; false if the bytes are not one.
  bool add(const std::string& bytes);
  bool empty() const { return ranks_.empty(); }

  std::string report() const;

 private:
  struct rank_record {
    flight_record last;                             // begun last
    std::map<std::string, std::uint64_t> begun_in;  // number of collectives, by group
    std::vector<flight_record> under_way;
  };

  /// Whether a rank of the operation's group has not yet begun it. False for a message, and for a rank that
  /// is not known to be in the group.
  static bool is_behind(const rank_record& r, const flight_record& operation);
  static std::string described(const flight_record& r) {
    const bool numbered = r.number != flight_record::no_number;
    return text_of(r.group) + (numbered ? " #" + std::to_string(r.number) : "") + " " + text_of(r.text);
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
std::string flight_report(const std::string& folder);

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/comm/impl/flight_report.ipp>
#endif
