// SPDX-License-Identifier: MIT
// Definitions of <weft/comm/file_store.hpp>.
#pragma once

#include <fcntl.h>
#include <sys/file.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <random>

#include <weft/base/blocked_signals.hpp>
#include <weft/base/config.hpp>
#include <weft/comm/file_store.hpp>

namespace weft {

WEFT_DEFINE file_store::file_store(std::string folder) : folder_(std::move(folder)) {
  std::error_code failed;
  const bool made = std::filesystem::create_directories(folder_, failed);
  if (made && !failed) std::filesystem::permissions(folder_, std::filesystem::perms::owner_all, failed);
  if (failed) throw io_error("weft: store: " + folder_ + ": " + failed.message());
  const folder_lock probe(*this);
}

WEFT_DEFINE std::string file_store::get(const std::string& key, milliseconds limit) {
  std::optional<std::string> value;
  if (!until(limit, [&] { return (value = read(path_of(key_file, key))).has_value(); }))
    throw late({key}, limit);
  return *value;
}

WEFT_DEFINE std::int64_t file_store::add(const std::string& key, std::int64_t amount) {
  const folder_lock lock(*this);
  const std::optional<std::string> value = read(path_of(key_file, key));
  const std::int64_t after = detail::stored_sum(key, value.value_or("0"), amount);
  write(path_of(key_file, key), std::to_string(after));
  return after;
}

WEFT_DEFINE std::string file_store::compare_set(const std::string& key, const std::string& expected,
                                                const std::string& desired) {
  const folder_lock lock(*this);
  const std::optional<std::string> value = read(path_of(key_file, key));
  if (value ? *value != expected : !expected.empty()) return value.value_or(expected);
  write(path_of(key_file, key), desired);
  return desired;
}

WEFT_DEFINE std::int64_t file_store::num_keys() {
  std::int64_t n = 0;
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, failed))
    n += entry.path().filename().string().starts_with(key_file);
  return n;
}

WEFT_DEFINE void file_store::push(const std::string& queue, const std::string& value) {
  const folder_lock lock(*this);
  const std::string path = path_of(queue_file, queue);
  write(path, read(path).value_or("") + detail::frame_writer().text(value).take());
}

WEFT_DEFINE std::optional<std::string> file_store::pop(const std::string& queue, milliseconds limit,
                                                       std::stop_token stop) {
  const std::string path = path_of(queue_file, queue);
  std::optional<std::string> value;
  until(limit, [&] {
    if (std::filesystem::exists(path)) value = take_first(path);
    return value.has_value() || stop.stop_requested();
  });
  return value;
}

WEFT_DEFINE file_store::folder_lock::folder_lock(const file_store& s)
    : file_(::open((s.folder_ + "/lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600)) {
  if (file_ < 0 || ::flock(file_, LOCK_EX) != 0) {
    if (file_ >= 0) ::close(file_);
    throw io_error("weft: store: " + s.folder_ + ": cannot be locked");
  }
}

WEFT_DEFINE std::string file_store::path_of(const char* kind, const std::string& key) const {
  constexpr const char* digits = "0123456789ABCDEF";
  std::string name;
  for (const char c : key) {
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
    if (plain) name += c;
    else (name += '%') += {digits[static_cast<unsigned char>(c) >> 4], digits[c & 15]};
  }
  if (name.size() > 240)
    throw value_error("weft: store: a key of " + std::to_string(key.size()) +
                      " bytes is too long for a file name");
  return folder_ + "/" + kind + name;
}

WEFT_DEFINE std::optional<std::string> file_store::read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

WEFT_DEFINE void file_store::write(const std::string& path, const std::string& bytes) const {
  static std::atomic<std::uint64_t> written{0};
  static const std::string machine = std::to_string(std::random_device()());  // process ids are per machine
  const std::string beside =
      folder_ + "/new-" + machine + "-" + std::to_string(::getpid()) + "-" + std::to_string(written++);
  const blocked_signals blocked{SIGXFSZ};
  std::ofstream out(beside, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  std::error_code failed;
  if (out) std::filesystem::rename(beside, path, failed);
  if (!out || failed) {
    std::filesystem::remove(beside, failed);
    throw io_error("weft: store: " + path + " cannot be written");
  }
}

WEFT_DEFINE std::optional<std::string> file_store::take_first(const std::string& path) const {
  const folder_lock lock(*this);
  const std::optional<std::string> all = read(path);
  if (!all) return std::nullopt;
  detail::frame_reader r(*all);
  std::string value = r.text();
  if (!r.good()) throw io_error("weft: store: " + path + " is not a queue");
  if (r.at_end()) std::filesystem::remove(path);
  else write(path, r.rest());
  return value;
}

WEFT_DEFINE std::vector<std::string> file_store::missing(const std::vector<std::string>& keys) const {
  std::vector<std::string> m;
  for (const std::string& key : keys)
    if (!std::filesystem::exists(path_of(key_file, key))) m.push_back(key);
  return m;
}

}  // namespace weft
