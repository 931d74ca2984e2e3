// SPDX-License-Identifier: MIT
// A flight recorder: the latest operations of a rank, in a memory-mapped file, which survives the process
// however it ends.
//
//   ranks.record_in(std::make_shared<flight_recorder>("flight", ranks.rank()));
//   ...
//   std::puts(flight_report("flight").c_str());     // afterwards, on any machine with access to the folder
//
// To read recordings: flight_report.hpp.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>

#include <weft/base/error.hpp>

namespace weft {

namespace detail {

struct flight_record {
  std::uint64_t order = 0;       // counts the rank's operations, from 1; 0: empty, or being written
  std::int64_t begun = 0, ended = 0;  // nanoseconds of the system clock; ended 0: in progress
  std::uint64_t number = 0;           // of a collective within its group, counted from 0
  char group[40] = {};
  char text[120] = {};

  static constexpr std::uint64_t no_number = static_cast<std::uint64_t>(-1);  // not a collective
};

inline constexpr char flight_magic[8] = {'w', 'e', 'f', 't', 'f', 'l', 't', '2'};
inline constexpr std::size_t flight_records = 1024;

struct flight_file {
  char magic[8];
  std::int32_t rank;
  std::int32_t records;
  flight_record at[flight_records];
};

inline std::string flight_path(const std::string& folder, int rank) {
  return folder + "/rank-" + std::to_string(rank) + ".flight";
}

}  // namespace detail

/// The recording of one rank: a ring of the latest 1,024 operations.
class flight_recorder {
 public:
  /// Creates `folder`/rank-N.flight, replacing a previous one. Throws io_error if it cannot be created in
  /// full: disk space is reserved, so that recording cannot fail on a full disk.
  flight_recorder(const std::string& folder, int rank);
  flight_recorder(const flight_recorder&) = delete;
  flight_recorder& operator=(const flight_recorder&) = delete;
  ~flight_recorder() { ::munmap(file_, sizeof(detail::flight_file)); }

  /// Records that an operation begins; returns its number for `end`.
  std::uint64_t begin(const std::string& group, std::uint64_t number, const std::string& text);
  void end(std::uint64_t order);

 private:
  [[noreturn]] static void refuse(const std::string& path, int reason) {
    throw io_error("weft: " + path + ": cannot record there: " + std::strerror(reason));
  }
  static std::int64_t now();
  detail::flight_file* file_;
  std::atomic<std::uint64_t> last_ = 0;
};

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/comm/impl/flight_recorder.ipp>
#endif
