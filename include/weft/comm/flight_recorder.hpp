// SPDX-License-Identifier: MIT
// A flight recorder: the last operations of a rank, in a file that is mapped into memory. What is
// written there survives the process, however it ends.
//
//   ranks.record_in(std::make_shared<flight_recorder>("flight", ranks.rank()));
//   ...
//   std::puts(flight_report("flight").c_str());     // afterwards, on any machine that sees the folder
//
// A file is untrusted: flight_report says which ones are no recordings.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <weft/base/error.hpp>

namespace weft {

namespace detail {

struct flight_record {
  std::uint64_t order = 0;       // counts the rank's operations, from 1; 0: empty, or being written
  std::int64_t begun = 0, ended = 0;  // nanoseconds of the system clock; ended 0: under way
  std::uint64_t number = 0;      // of a collective within its group
  char group[24] = {};
  char text[136] = {};
};

inline constexpr char flight_magic[8] = {'w', 'e', 'f', 't', 'f', 'l', 't', '1'};
inline constexpr std::size_t flight_records = 1024;

struct flight_file {
  char magic[8];
  std::int32_t rank;
  std::int32_t records;
  flight_record at[flight_records];
};

inline std::string flight_path(const std::string& folder, int rank) { return folder + "/rank-" + std::to_string(rank) + ".flight"; }

template <std::size_t N>
void set_text(char (&to)[N], const std::string& from) {
  const std::size_t n = std::min(from.size(), N - 1);
  std::memcpy(to, from.data(), n);
  std::memset(to + n, 0, N - n);
}
template <std::size_t N>
std::string text_of(const char (&from)[N]) {
  return std::string(from, strnlen(from, N));
}

}  // namespace detail

/// The recording of one rank.
class flight_recorder {
 public:
  /// Throws io_error if the file cannot be made.
  flight_recorder(const std::string& folder, int rank) {
    std::error_code failed;
    std::filesystem::create_directories(folder, failed);
    const std::string path = detail::flight_path(folder, rank);
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
    const bool sized = file >= 0 && ::ftruncate(file, sizeof(detail::flight_file)) == 0;
    void* memory = sized ? ::mmap(nullptr, sizeof(detail::flight_file), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    if (file >= 0) ::close(file);
    if (memory == MAP_FAILED) throw io_error("weft: " + path + ": cannot record there: " + std::strerror(errno));
    file_ = static_cast<detail::flight_file*>(memory);
    file_->rank = rank;
    file_->records = detail::flight_records;
    std::memcpy(file_->magic, detail::flight_magic, sizeof detail::flight_magic);
  }
  flight_recorder(const flight_recorder&) = delete;
  flight_recorder& operator=(const flight_recorder&) = delete;
  ~flight_recorder() { ::munmap(file_, sizeof(detail::flight_file)); }

  /// An operation begins; what to call `end` with.
  std::uint64_t begin(const std::string& group, std::uint64_t number, const std::string& text) {
    const std::uint64_t order = ++last_;
    detail::flight_record& r = file_->at[order % detail::flight_records];
    std::atomic_ref(r.order).store(0);
    r.begun = now();
    r.ended = 0;
    r.number = number;
    detail::set_text(r.group, group);
    detail::set_text(r.text, text);
    std::atomic_ref(r.order).store(order);
    return order;
  }
  void end(std::uint64_t order) {
    detail::flight_record& r = file_->at[order % detail::flight_records];
    if (std::atomic_ref(r.order).load() == order && r.ended == 0) r.ended = now();
  }

 private:
  static std::int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  }
  detail::flight_file* file_;
  std::atomic<std::uint64_t> last_ = 0;
};

/// What the recordings in a folder tell: what each rank did last, and which rank others wait for.
inline std::string flight_report(const std::string& folder) {
  struct rank_record {
    detail::flight_record last;                          // begun last
    std::map<std::string, std::uint64_t> begun_in;       // highest number by group
    std::vector<detail::flight_record> under_way;
  };
  std::map<int, rank_record> ranks;
  std::string report;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    if (entry.path().extension() != ".flight") continue;
    std::ifstream in(entry.path(), std::ios::binary);
    std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
    detail::flight_file file;
    if (bytes.size() != sizeof file || std::memcmp(bytes.data(), detail::flight_magic, sizeof detail::flight_magic) != 0) {
      report += entry.path().string() + ": is no recording\n";
      continue;
    }
    std::memcpy(&file, bytes.data(), sizeof file);
    rank_record& r = ranks[file.rank];
    for (const detail::flight_record& one : file.at) {
      if (one.order == 0) continue;
      if (one.order > r.last.order) r.last = one;
      std::uint64_t& most = r.begun_in[detail::text_of(one.group)];
      most = std::max(most, one.number);
      if (one.ended == 0) r.under_way.push_back(one);
    }
  }
  if (ranks.empty()) return report + folder + ": no recordings\n";
  const auto described = [](const detail::flight_record& r) {
    return detail::text_of(r.group) + " #" + std::to_string(r.number) + " " + detail::text_of(r.text);
  };
  for (const auto& [rank, r] : ranks) {
    report += "rank " + std::to_string(rank) + ": ";
    if (r.last.order == 0) report += "no operation yet\n";
    else report += (r.last.ended ? "ended " : "waits in ") + described(r.last) + "\n";
  }
  std::string behind;
  for (const auto& [rank, r] : ranks)
    for (const detail::flight_record& waits : r.under_way)
      for (const auto& [other, o] : ranks) {
        const auto found = o.begun_in.find(detail::text_of(waits.group));
        const bool takes_part = found != o.begun_in.end();
        if (other == rank || !takes_part || found->second >= waits.number) continue;
        const std::string line = "rank " + std::to_string(other) + " has not begun " + described(waits) + "\n";
        if (behind.find(line) == behind.npos) behind += line;
      }
  return report + behind;
}

}  // namespace weft
