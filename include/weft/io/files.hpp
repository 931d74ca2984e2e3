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

/// A new file, written piece by piece. It is removed again unless `finish` was reached.
class new_file {
 public:
  /// Throws io_error if the name exists.
  new_file(file_calls& calls, std::string path) : calls_(&calls), path_(std::move(path)) {
    file_ = calls.create(path_);
    if (file_ < 0) fail_at(path_, "cannot be written");
  }
  new_file(const new_file&) = delete;
  new_file& operator=(const new_file&) = delete;
  ~new_file() {
    if (finished_) return;
    if (file_ >= 0) calls_->close(file_);
    calls_->remove(path_);
  }

  void append(std::string_view part) {
    while (!part.empty()) {
      const ssize_t n =
          calls_->write(file_, part.data(), std::min<std::size_t>(part.size(), std::size_t{1} << 30));
      if (n < 0 && errno != EINTR) fail_at(path_, "writing failed");
      if (n > 0) part.remove_prefix(static_cast<std::size_t>(n));
    }
  }
  /// The content is on the disk when this returns; the name is after the folder is synced.
  void finish() {
    if (calls_->sync(file_) != 0) fail_at(path_, "writing failed");
    if (calls_->close(std::exchange(file_, -1)) != 0) fail_at(path_, "writing failed");
    finished_ = true;
  }

 private:
  file_calls* calls_;
  std::string path_;
  int file_;
  bool finished_ = false;
};

/// Writes a new file, whose content is on the disk when this returns; its name is after the folder is synced.
/// Throws io_error, with the file removed, if writing fails or the name exists.
inline void write_new_file(file_calls& calls, const std::string& path, const file_parts& parts) {
  new_file file(calls, path);
  for (const std::string_view part : parts) file.append(part);
  file.finish();
}

/// Returns when the directory entries of a folder are on the disk; throws io_error on failure.
inline void sync_folder(file_calls& calls, const std::string& path) {
  if (calls.sync_folder(path) != 0) fail_at(path, "cannot be synced");
}

/// Replaces a file atomically: at any moment, even after a power failure, `path` has the whole old or the
/// whole new content. The temporary file is `path`.partial; it is removed unless `finish` is reached.
class replacement_file {
 public:
  /// Throws io_error if `path` is not a regular file, or the temporary file cannot be written.
  replacement_file(file_calls& calls, std::string path)
      : calls_(&calls), path_(std::move(path)), file_(calls, cleared(calls, path_)) {}

  void append(std::string_view part) { file_.append(part); }
  void finish() {
    const std::string partial = partial_of(path_);
    file_.finish();
    if (calls_->rename(partial, path_) != 0) {
      const int reason = errno;
      calls_->remove(partial);
      errno = reason;
      fail_at(path_, "cannot be replaced");
    }
    sync_folder(*calls_, parent_of(path_));
  }

 private:
  static std::string partial_of(const std::string& path) { return path + ".partial"; }
  /// The name of the temporary file, under which there is no file any more.
  static std::string cleared(file_calls& calls, const std::string& path) {
    struct stat is{};
    if (::lstat(path.c_str(), &is) == 0)
      if (const char* other = kind_other_than_file(is.st_mode))
        throw io_error("weft: " + path + ": is " + other + ", not a file that could be replaced");
    if (calls.remove(partial_of(path)) != 0 && errno != ENOENT) fail_at(partial_of(path), "is in the way");
    return partial_of(path);
  }

  file_calls* calls_;
  std::string path_;
  new_file file_;
};

/// Replaces a file atomically by these parts; see replacement_file. Throws io_error on failure.
inline void replace_file(file_calls& calls, const std::string& path, const file_parts& parts) {
  replacement_file file(calls, path);
  for (const std::string_view part : parts) file.append(part);
  file.finish();
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
