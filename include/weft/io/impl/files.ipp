// SPDX-License-Identifier: MIT
// Definitions of <weft/io/files.hpp>.
#pragma once

#include <dirent.h>
#include <sys/file.h>

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>

#include <weft/base/config.hpp>
#include <weft/io/files.hpp>

namespace weft {
namespace io {

WEFT_DEFINE void fail_at(const std::string& path, const char* what) {
  const char* const reason = std::strerror(errno);
  throw io_error("weft: " + path + ": " + what + ": " + reason +
                 (errno == ENOSPC || errno == EDQUOT || errno == EFBIG ? "; is the disk full?" : ""));
}

WEFT_DEFINE const char* kind_other_than_file(mode_t mode) {
  return S_ISREG(mode)    ? nullptr
         : S_ISDIR(mode)  ? "a folder"
         : S_ISLNK(mode)  ? "a symbolic link"
         : S_ISFIFO(mode) ? "a FIFO"
         : S_ISSOCK(mode) ? "a socket"
                          : "a device";
}

WEFT_DEFINE input_file::input_file(std::string path)
    : path_(std::move(path)), file_(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  if (path_.empty()) throw io_error("weft: the path of a file to be read is empty");
  struct stat is{};
  if (file_.number() < 0 || ::fstat(file_.number(), &is) != 0) fail_at(path_, "cannot be opened");
  if (const char* other = kind_other_than_file(is.st_mode))
    throw io_error("weft: " + path_ + ": is " + other + ", not a file");
  size_ = static_cast<std::uint64_t>(is.st_size);
}

WEFT_DEFINE void input_file::read(std::uint64_t at, char* to, std::size_t bytes) const {
  if (at > size_ || bytes > size_ - at) throw io_error("weft: " + path_ + ": ends early");
  while (bytes > 0) {
    const ssize_t n = ::pread(file_.number(), to, std::min<std::size_t>(bytes, std::size_t{1} << 30),
                              static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_at(path_, "cannot be read");
    if (n == 0) throw io_error("weft: " + path_ + ": became shorter while it was read");
    to += n, at += static_cast<std::uint64_t>(n), bytes -= static_cast<std::size_t>(n);
  }
}

WEFT_DEFINE std::string input_file::text(std::uint64_t most) const {
  if (size_ > most)
    throw io_error("weft: " + path_ + ": has " + std::to_string(size_) + " bytes, but at most " +
                   std::to_string(most) + " can be read");
  std::string all(static_cast<std::size_t>(size_), '\0');
  read(0, all.data(), all.size());
  return all;
}

WEFT_DEFINE bool is_at(const std::string& path, int file) {
  struct stat open{}, there{};
  return ::fstat(file, &open) == 0 && ::lstat(path.c_str(), &there) == 0 && open.st_ino == there.st_ino &&
         open.st_dev == there.st_dev;
}

WEFT_DEFINE std::string parent_of(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  return slash == path.npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

WEFT_DEFINE new_file::new_file(file_calls& calls, std::string path) : calls_(&calls), path_(std::move(path)) {
  file_ = calls.create(path_);
  if (file_ < 0) fail_at(path_, "cannot be written");
}

WEFT_DEFINE void new_file::append(std::string_view part) {
  while (!part.empty()) {
    const ssize_t n =
        calls_->write(file_, part.data(), std::min<std::size_t>(part.size(), std::size_t{1} << 30));
    if (n < 0 && errno != EINTR) fail_at(path_, "writing failed");
    if (n > 0) part.remove_prefix(static_cast<std::size_t>(n));
  }
}

WEFT_DEFINE void new_file::set_mode(mode_t mode) {
  if (calls_->set_mode(file_, mode) != 0)
    fail_at(path_, "the permissions of the previous file cannot be kept");
}

WEFT_DEFINE void new_file::sync() {
  if (calls_->sync(file_) != 0) fail_at(path_, "writing failed");
}

WEFT_DEFINE void new_file::finish() {
  sync();
  if (calls_->close(std::exchange(file_, -1)) != 0) fail_at(path_, "writing failed");
  finished_ = true;
}

WEFT_DEFINE void write_new_file(file_calls& calls, const std::string& path, const file_parts& parts) {
  new_file file(calls, path);
  for (const std::string_view part : parts) file.append(part);
  file.finish();
}

namespace detail {
/// The files that threads of the process have claimed, by folder and name.
struct claimed_paths {
  std::mutex changing;
  std::condition_variable released;
  std::set<std::string> paths;
};
inline claimed_paths& all_claimed_paths() {
  static claimed_paths all;
  return all;
}
/// A text that is equal for all spellings of a path: the device and inode numbers of its folder, and its name
/// in it.
inline std::string without_spelling(const std::string& path) {
  struct stat is{};
  if (::stat(parent_of(path).c_str(), &is) != 0) return path;
  return std::to_string(is.st_dev) + " " + std::to_string(is.st_ino) + " " +
         path.substr(path.find_last_of('/') + 1);
}
}  // namespace detail

WEFT_DEFINE path_claim::path_claim(const std::string& path) : path_(detail::without_spelling(path)) {
  auto& [changing, released, paths] = detail::all_claimed_paths();
  std::unique_lock lock(changing);
  while (!paths.insert(path_).second) released.wait(lock);
}
WEFT_DEFINE path_claim::~path_claim() {
  auto& [changing, released, paths] = detail::all_claimed_paths();
  const std::lock_guard lock(changing);
  paths.erase(path_);
  released.notify_all();
}

WEFT_DEFINE replacement_file::replacement_file(file_calls& calls, std::string path)
    : calls_(&calls),
      path_(std::move(path)),
      claim_(path_),
      file_(calls, partial_of(path_), created(calls, path_)),
      lock_(::fcntl(file_.number(), F_DUPFD_CLOEXEC, 0)) {
  if (!lock_) fail_at(partial_of(path_), "cannot be locked");
  struct stat is{};
  if (::lstat(path_.c_str(), &is) == 0) file_.set_mode(is.st_mode & 07777);
}

WEFT_DEFINE void replacement_file::finish() {
  const std::string partial = partial_of(path_);
  file_.finish();
  if (!is_at(partial, lock_.number()))
    throw io_error("weft: " + partial + ": was deleted or replaced while it was written");
  if (calls_->rename(partial, path_) != 0) {
    const int reason = errno;
    calls_->remove(partial);
    errno = reason;
    fail_at(path_, "cannot be replaced");
  }
  sync_folder(*calls_, parent_of(path_));
}

WEFT_DEFINE int replacement_file::created(file_calls& calls, const std::string& path) {
  if (path.empty()) throw io_error("weft: the path of a file to be written is empty");
  struct stat is{};
  if (::lstat(path.c_str(), &is) == 0)
    if (const char* other = kind_other_than_file(is.st_mode))
      throw io_error("weft: " + path + ": is " + other + ", not a file that could be replaced");
  const std::string partial = partial_of(path);
  while (true) {
    const int file = calls.create(partial);
    if (file < 0 && errno != EEXIST) fail_at(partial, "cannot be written");
    if (file < 0) {
      remove_stale(calls, path);
      continue;
    }
    try {
      lock(path, file);
    } catch (const io_error&) {
      calls.close(file);
      throw;
    }
    if (is_at(partial, file)) return file;
    calls.close(file);  // another process removed it before it was locked
  }
}

WEFT_DEFINE void replacement_file::remove_stale(file_calls& calls, const std::string& path) {
  const std::string partial = partial_of(path);
  struct stat is{};
  descriptor file;
  if (::lstat(partial.c_str(), &is) == 0 && S_ISREG(is.st_mode)) {
    constexpr int how = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    file = descriptor(::open(partial.c_str(), O_WRONLY | how));  // NFS locks only writable files
    if (!file && errno == EACCES) file = descriptor(::open(partial.c_str(), O_RDONLY | how));
    if (!file && errno != ENOENT) fail_at(partial, "is in the way");
    if (!file) return;
    lock(path, file.number());
    if (!is_at(partial, file.number())) return;
  }
  if (calls.remove(partial) != 0 && errno != ENOENT) fail_at(partial, "is in the way");
}

WEFT_DEFINE void replacement_file::lock(const std::string& path, int file) {
  int failed;
  do failed = ::flock(file, LOCK_EX | LOCK_NB);
  while (failed && errno == EINTR);
  if (failed && errno == EWOULDBLOCK)
    throw io_error("weft: " + path + ": another process is replacing it: it has locked " + partial_of(path));
}

WEFT_DEFINE void replace_file(file_calls& calls, const std::string& path, const file_parts& parts) {
  replacement_file file(calls, path);
  for (const std::string_view part : parts) file.append(part);
  file.finish();
}

WEFT_DEFINE void make_folders(file_calls& calls, const std::string& path) {
  struct stat is{};
  if (::stat(path.c_str(), &is) == 0) {
    if (!S_ISDIR(is.st_mode))
      throw io_error("weft: " + path + ": is " +
                     (kind_other_than_file(is.st_mode) ? kind_other_than_file(is.st_mode) : "a file") +
                     ", not a folder");
    return;
  }
  const std::string parent = parent_of(path);
  if (parent != path) make_folders(calls, parent);
  if (calls.make_folder(path) != 0 && errno != EEXIST) fail_at(path, "cannot be created");
  sync_folder(calls, parent);
}

WEFT_DEFINE std::vector<std::string> names_in(const std::string& folder) {
  DIR* const open = ::opendir(folder.c_str());
  if (!open) fail_at(folder, "cannot be listed");
  const std::unique_ptr<DIR, int (*)(DIR*)> closes(open, ::closedir);
  std::vector<std::string> names;
  for (;;) {
    errno = 0;  // null is the end of the folder, or an error
    const dirent* const entry = ::readdir(open);
    if (!entry) break;
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  if (errno != 0) fail_at(folder, "cannot be listed");
  std::sort(names.begin(), names.end());
  return names;
}

WEFT_DEFINE void remove_tree(file_calls& calls, const std::string& path) {
  struct stat is{};
  if (::lstat(path.c_str(), &is) != 0) return;
  if (S_ISDIR(is.st_mode)) {
    for (const std::string& name : names_in(path)) remove_tree(calls, path + "/" + name);
    if (calls.remove_folder(path) != 0 && errno != ENOENT) fail_at(path, "cannot be deleted");
  } else if (calls.remove(path) != 0 && errno != ENOENT) {
    fail_at(path, "cannot be deleted");
  }
}

}  // namespace io
}  // namespace weft
