// SPDX-License-Identifier: MIT
// Definitions of <weft/gpu/kernel_cache.hpp>.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <tuple>
#include <utility>

#include <weft/base/blocked_signals.hpp>
#include <weft/base/config.hpp>
#include <weft/base/number.hpp>
#include <weft/base/xxh64.hpp>
#include <weft/gpu/kernel_cache.hpp>

namespace weft {
namespace gpu {
namespace detail {

inline constexpr std::uint64_t kernel_file_format = 1;

/// The header of a file. It follows from key and code, so a file is valid if its header is.
struct kernel_file_header {
  char magic[8] = {'w', 'e', 'f', 't', ' ', 'k', 'r', 'n'};
  std::uint64_t format = kernel_file_format;
  digest key;
  std::uint64_t bytes, checksum;

  kernel_file_header(const digest& of, std::span<const char> code)
      : key(of), bytes(code.size()), checksum(xxh64({code.data(), code.size()})) {}
  std::string_view text() const { return {reinterpret_cast<const char*>(this), sizeof *this}; }
};
static_assert(sizeof(kernel_file_header) == 64);  // without padding

WEFT_DEFINE void say_once(const std::string& message) {
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::lock_guard lock(mutex);
  if (said.insert(message).second) std::fprintf(stderr, "%s\n", message.c_str());
}

WEFT_DEFINE std::string hex(std::span<const std::uint8_t> bytes) {
  std::string text;
  for (const std::uint8_t b : bytes) {
    text += "0123456789abcdef"[b >> 4];
    text += "0123456789abcdef"[b & 15];
  }
  return text;
}

/// A name for a file that is being written, which no other process uses.
WEFT_DEFINE std::string unfinished_name(const std::string& name) {
  std::random_device random;
  std::array<std::uint8_t, 8> bytes;
  for (std::uint8_t& b : bytes) b = static_cast<std::uint8_t>(random());
  return name + "." + hex(bytes);
}

/// Whether a name may be one that the cache has given; other files in the folder are not touched.
WEFT_DEFINE bool is_name_of_kernel(std::string_view name, bool unfinished) {
  const std::size_t end = std::min(name.find('.'), name.size());
  const auto is_hex = [](std::string_view s, std::size_t size) {
    return s.size() == size && s.find_first_not_of("0123456789abcdef") == s.npos;
  };
  return is_hex(name.substr(0, end), 64) &&
         (unfinished ? end < name.size() && is_hex(name.substr(end + 1), 16) : end == name.size());
}

WEFT_DEFINE bool others_may_write(const struct stat& is) { return (is.st_mode & (S_IWGRP | S_IWOTH)) != 0; }

WEFT_DEFINE bool write_all(int file, std::string_view text) {
  const blocked_signals blocked{SIGXFSZ};
  while (!text.empty()) {
    const ssize_t n = ::write(file, text.data(), std::min<std::size_t>(text.size(), std::size_t{1} << 30));
    if (n < 0 && errno != EINTR) return false;
    if (n > 0) text.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

/// The content of a regular file of this user that nobody else may write, if it has at most `most` bytes.
WEFT_DEFINE std::optional<std::vector<char>> read_own_file(int file, std::uint64_t most) {
  struct stat is{};
  if (::fstat(file, &is) != 0 || !S_ISREG(is.st_mode) || is.st_uid != ::geteuid() || others_may_write(is) ||
      static_cast<std::uint64_t>(is.st_size) > most)
    return {};
  std::vector<char> content(static_cast<std::size_t>(is.st_size));
  for (std::size_t at = 0; at < content.size();) {
    const ssize_t n = ::read(file, content.data() + at, std::min(content.size() - at, std::size_t{1} << 30));
    if (n == 0 || (n < 0 && errno != EINTR)) return {};
    if (n > 0) at += static_cast<std::size_t>(n);
  }
  return content;
}

}  // namespace detail

WEFT_DEFINE digest kernel_key(const std::vector<std::string_view>& parts) {
  std::string all = "weft kernel";
  for (const std::uint64_t number : {detail::kernel_file_format, std::uint64_t{WEFT_VERSION_MAJOR},
                                     std::uint64_t{WEFT_VERSION_MINOR}, std::uint64_t{WEFT_VERSION_PATCH}})
    all += " " + std::to_string(number);
  for (const std::string_view part : parts) all.append("\n" + std::to_string(part.size()) + " ").append(part);
  return sha256(all);
}

WEFT_DEFINE kernel_cache::kernel_cache(std::string folder, std::uint64_t most_bytes)
    : path_(std::move(folder)), most_(most_bytes) {}

WEFT_DEFINE std::string kernel_cache::default_folder() {
  if (const char* const chosen = std::getenv("WEFT_KERNEL_CACHE")) return chosen;
  const char *const caches = std::getenv("XDG_CACHE_HOME"), *const home = std::getenv("HOME");
  if (caches && *caches == '/') return std::string(caches) + "/weft/kernels";  // relative paths are ignored
  return home && *home ? std::string(home) + "/.cache/weft/kernels" : "";
}

WEFT_DEFINE std::uint64_t kernel_cache::default_bytes() {
  std::uint64_t bytes = std::uint64_t{1} << 30;
  const char* const set = std::getenv("WEFT_KERNEL_CACHE_BYTES");
  if (!set || !*set) return bytes;
  if (const auto chosen = weft::detail::parse_number<std::uint64_t>(set)) return *chosen;
  detail::say_once(std::string("weft: WEFT_KERNEL_CACHE_BYTES=") + set +
                   " is not a number of bytes: " + std::to_string(bytes) + " is used");
  return bytes;
}

WEFT_DEFINE void kernel_cache::refuse(const std::string& why) {
  folder_ = descriptor();
  refusal_ = "weft: compiled kernels are not cached: " + path_ + ": " + why;
  detail::say_once(refusal_);
}

WEFT_DEFINE bool kernel_cache::open() {
  if (std::exchange(tried_, true) || path_.empty()) return static_cast<bool>(folder_);
  int reason = 0;
  for (std::size_t end = 0; end != path_.npos;) {  // existing folders are left unchanged
    end = path_.find('/', end + 1);
    if (::mkdir(path_.substr(0, end).c_str(), 0700) != 0 && errno != EEXIST) reason = errno;
  }
  folder_ = descriptor(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat is{};
  if (!folder_ || ::fstat(folder_.number(), &is) != 0)
    refuse(std::string("cannot be opened: ") + std::strerror(errno == ENOENT && reason ? reason : errno));
  else if (is.st_uid != ::geteuid()) refuse("belongs to another user, and its files would be executed");
  else if (detail::others_may_write(is))
    refuse("other users may write to it, and its files would be executed");
  return static_cast<bool>(folder_);
}

WEFT_DEFINE bool kernel_cache::is_open() {
  const std::lock_guard lock(mutex_);
  return open();
}

WEFT_DEFINE std::optional<std::vector<char>> kernel_cache::find(const digest& key) {
  const std::lock_guard lock(mutex_);
  if (!open()) return {};
  const descriptor file(
      ::openat(folder_.number(), detail::hex(key).c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  constexpr std::size_t begin = sizeof(detail::kernel_file_header);
  std::optional<std::vector<char>> content;
  if (file) content = detail::read_own_file(file.number(), most_);
  if (!content || content->size() < begin) return {};
  const detail::kernel_file_header expected(key, std::span(*content).subspan(begin));
  if (std::string_view(content->data(), begin) != expected.text()) return {};
  ::futimens(file.number(), nullptr);
  content->erase(content->begin(), content->begin() + begin);
  return content;
}

WEFT_DEFINE void kernel_cache::keep(const digest& key, std::span<const char> code) {
  const detail::kernel_file_header header(key, code);
  const std::uint64_t bytes = sizeof header + code.size();
  const std::string name = detail::hex(key), unfinished = detail::unfinished_name(name);
  const std::lock_guard lock(mutex_);
  if (bytes > most_ || !open()) return;
  const int file = ::openat(folder_.number(), unfinished.c_str(),
                            O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0) return;
  // Not synced: the checksum reveals a file that was truncated by a power failure.
  const bool is_written =
      detail::write_all(file, header.text()) && detail::write_all(file, {code.data(), code.size()});
  if (::close(file) == 0 && is_written &&
      ::renameat(folder_.number(), unfinished.c_str(), folder_.number(), name.c_str()) == 0)
    make_room(name, bytes);
  else ::unlinkat(folder_.number(), unfinished.c_str(), 0);
}

WEFT_DEFINE std::vector<kernel_cache::entry> kernel_cache::entries() const {
  constexpr std::time_t patience = 3600;  // no file takes this long to write
  std::vector<entry> all;
  const int listed = ::openat(folder_.number(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const list = listed < 0 ? nullptr : ::fdopendir(listed);
  if (!list) {
    const descriptor closed(listed);
    return all;
  }
  while (const dirent* const next = ::readdir(list)) {
    const std::string name = next->d_name;
    struct stat is{};
    if (::fstatat(folder_.number(), name.c_str(), &is, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(is.st_mode))
      continue;
    if (detail::is_name_of_kernel(name, false))
      all.push_back({name, static_cast<std::uint64_t>(is.st_size), is.st_mtim});
    else if (detail::is_name_of_kernel(name, true) && is.st_mtim.tv_sec + patience < std::time(nullptr))
      ::unlinkat(folder_.number(), name.c_str(), 0);
  }
  ::closedir(list);
  return all;
}

WEFT_DEFINE void kernel_cache::make_room(const std::string& added, std::uint64_t bytes) {
  if (total_ && (*total_ += bytes) <= most_) return;
  std::vector<entry> all = entries();
  std::uint64_t total = 0;
  for (const entry& e : all) total += e.bytes;
  std::sort(all.begin(), all.end(), [](const entry& a, const entry& b) {
    return std::tie(a.used.tv_sec, a.used.tv_nsec, a.name) < std::tie(b.used.tv_sec, b.used.tv_nsec, b.name);
  });
  if (total > most_)  // to three quarters, so that the next file does not list the folder again
    for (const entry& e : all) {
      if (total <= most_ / 4 * 3) break;
      if (e.name == added) continue;
      ::unlinkat(folder_.number(), e.name.c_str(), 0);
      total -= e.bytes;
    }
  total_ = total;
}

}  // namespace gpu
}  // namespace weft
