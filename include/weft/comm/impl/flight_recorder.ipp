// SPDX-License-Identifier: MIT
// Definitions of <weft/comm/flight_recorder.hpp>.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include <weft/base/config.hpp>
#include <weft/comm/flight_recorder.hpp>
#include <weft/comm/operation.hpp>

namespace weft {

namespace detail {

template <std::size_t N>
void set_text(char (&to)[N], const std::string& from) {
  const std::string text = shortened(from, N - 1);
  std::memcpy(to, text.data(), text.size());
  std::memset(to + text.size(), 0, N - text.size());
}

}  // namespace detail

WEFT_DEFINE flight_recorder::flight_recorder(const std::string& folder, int rank) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  const std::string path = detail::flight_path(folder, rank);
  // Unlinked, not truncated: a recording that is mapped elsewhere is unaffected.
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) refuse(path, errno);
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0) refuse(path, errno);
  // Reserves disk blocks: writing to mapped memory without them would end the process by SIGBUS.
  int reason = ::posix_fallocate(file, 0, sizeof(detail::flight_file));
  void* const memory =
      reason ? MAP_FAILED
             : ::mmap(nullptr, sizeof(detail::flight_file), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED && !reason) reason = errno;
  ::close(file);
  if (reason) {
    ::unlink(path.c_str());
    refuse(path, reason);
  }
  file_ = static_cast<detail::flight_file*>(memory);
  file_->rank = rank;
  file_->records = detail::flight_records;
  std::memcpy(file_->magic, detail::flight_magic, sizeof detail::flight_magic);
}

WEFT_DEFINE std::uint64_t flight_recorder::begin(const std::string& group, std::uint64_t number,
                                                 const std::string& text) {
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

WEFT_DEFINE void flight_recorder::end(std::uint64_t order) {
  detail::flight_record& r = file_->at[order % detail::flight_records];
  if (std::atomic_ref(r.order).load() == order && r.ended == 0) r.ended = now();
}

WEFT_DEFINE std::int64_t flight_recorder::now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace weft
