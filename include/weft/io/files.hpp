// SPDX-License-Identifier: MIT
// Reading of regular files, and writing that leaves a file complete or absent, whatever fails.
//
//   const io::input_file in("model.safetensors");    // io_error: is a FIFO, not a file
//   io::replace_file(io::system_calls(), "latest", {text});
//
// Errors are io_error with the file and the system's reason.
#pragma once

#include <dirent.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <weft/base/descriptor.hpp>
#include <weft/base/error.hpp>
#include <weft/io/file_calls.hpp>

namespace weft::io {

/// Throws io_error for the call that has just failed, with the text of errno.
[[noreturn]] inline void fail_at(const std::string& path, const char* what) {
  const char* const reason = std::strerror(errno);
  throw io_error("weft: " + path + ": " + what + ": " + reason +
                 (errno == ENOSPC || errno == EDQUOT || errno == EFBIG ? "; is the disk full?" : ""));
}

/// What a mode denotes, such as "a folder", if it is not a regular file; null for a regular file.
inline const char* kind_other_than_file(mode_t mode) {
  return S_ISREG(mode)    ? nullptr
         : S_ISDIR(mode)  ? "a folder"
         : S_ISLNK(mode)  ? "a symbolic link"
         : S_ISFIFO(mode) ? "a FIFO"
         : S_ISSOCK(mode) ? "a socket"
                          : "a device";
}

/// A file opened for reading. Throws io_error unless `path` is a regular file: opening a FIFO does not block,
/// devices are not read.
class input_file {
 public:
  explicit input_file(std::string path)
      : path_(std::move(path)), file_(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
    struct stat is{};
    if (file_.number() < 0 || ::fstat(file_.number(), &is) != 0) fail_at(path_, "cannot be opened");
    if (const char* other = kind_other_than_file(is.st_mode))
      throw io_error("weft: " + path_ + ": is " + other + ", not a file");
    size_ = static_cast<std::uint64_t>(is.st_size);
  }

  const std::string& path() const { return path_; }
  /// Size in bytes when it was opened.
  std::uint64_t size() const { return size_; }

  /// Reads `bytes` bytes from offset `at`. Throws io_error if the file ends before.
  void read(std::uint64_t at, char* to, std::size_t bytes) const {
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
  /// The whole content. Throws io_error if the file is larger than `most` bytes.
  std::string text(std::uint64_t most = std::uint64_t{1} << 40) const {
    if (size_ > most)
      throw io_error("weft: " + path_ + ": has " + std::to_string(size_) + " bytes, more than the " +
                     std::to_string(most) + " that are read");
    std::string all(static_cast<std::size_t>(size_), '\0');
    read(0, all.data(), all.size());
    return all;
  }

 private:
  std::string path_;
  descriptor file_;
  std::uint64_t size_ = 0;
};

/// Parts of a file, in order.
using file_parts = std::vector<std::string_view>;

/// The folder of `path`: everything before the last slash, "." without a slash.
inline std::string parent_of(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  return slash == path.npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

/// Writes a new file, whose content is on the disk when this returns; its name is after the folder is synced.
/// Throws io_error, with the file removed, if writing fails or the name exists.
inline void write_new_file(file_calls& calls, const std::string& path, const file_parts& parts) {
  const int file = calls.create(path);
  if (file < 0) fail_at(path, "cannot be written");
  const auto give_up = [&] {
    const int reason = errno;
    calls.close(file);
    calls.remove(path);
    errno = reason;
    fail_at(path, "writing failed");
  };
  for (std::string_view part : parts)
    while (!part.empty()) {
      const ssize_t n =
          calls.write(file, part.data(), std::min<std::size_t>(part.size(), std::size_t{1} << 30));
      if (n < 0 && errno != EINTR) give_up();
      if (n > 0) part.remove_prefix(static_cast<std::size_t>(n));
    }
  if (calls.sync(file) != 0) give_up();
  if (calls.close(file) != 0) {
    const int reason = errno;
    calls.remove(path);
    errno = reason;
    fail_at(path, "writing failed");
  }
}

/// Returns when the directory entries of a folder are on the disk; throws io_error on failure.
inline void sync_folder(file_calls& calls, const std::string& path) {
  if (calls.sync_folder(path) != 0) fail_at(path, "cannot be synced");
}

/// Replaces a file atomically: at any moment, even after a power failure, `path` has the whole old or the
/// whole new content. The temporary file is `path`.partial. Throws io_error on failure, or if `path` is not a
/// regular file.
inline void replace_file(file_calls& calls, const std::string& path, const file_parts& parts) {
  struct stat is{};
  if (::lstat(path.c_str(), &is) == 0)
    if (const char* other = kind_other_than_file(is.st_mode))
      throw io_error("weft: " + path + ": is " + other + ", not a file that could be replaced");
  const std::string partial = path + ".partial";
  if (calls.remove(partial) != 0 && errno != ENOENT) fail_at(partial, "is in the way");
  write_new_file(calls, partial, parts);
  if (calls.rename(partial, path) != 0) {
    const int reason = errno;
    calls.remove(partial);
    errno = reason;
    fail_at(path, "cannot be replaced");
  }
  sync_folder(calls, parent_of(path));
}

/// Creates a folder and its parents; no error if it exists. Throws io_error if it cannot be created.
inline void make_folders(file_calls& calls, const std::string& path) {
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
  if (calls.make_folder(path) != 0 && errno != EEXIST) fail_at(path, "cannot be made");
  sync_folder(calls, parent);
}

/// The names in a folder in ascending order, without "." and "..". Throws io_error if it cannot be listed.
inline std::vector<std::string> names_in(const std::string& folder) {
  DIR* const open = ::opendir(folder.c_str());
  if (!open) fail_at(folder, "cannot be listed");
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(open)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  ::closedir(open);
  std::sort(names.begin(), names.end());
  return names;
}

/// Deletes a file, or a folder and everything in it, without following links; no error if there is none.
inline void remove_tree(file_calls& calls, const std::string& path) {
  struct stat is{};
  if (::lstat(path.c_str(), &is) != 0) return;
  if (S_ISDIR(is.st_mode)) {
    for (const std::string& name : names_in(path)) remove_tree(calls, path + "/" + name);
    if (calls.remove_folder(path) != 0 && errno != ENOENT) fail_at(path, "cannot be deleted");
  } else if (calls.remove(path) != 0 && errno != ENOENT) {
    fail_at(path, "cannot be deleted");
  }
}

}  // namespace weft::io
