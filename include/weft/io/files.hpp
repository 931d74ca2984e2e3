// SPDX-License-Identifier: MIT
// Reading of regular files, and writing that leaves a file complete or absent after any failure.
//
//   const io::input_file in("model.safetensors");    // io_error: is a FIFO, not a file
//   io::replace_file(io::system_calls(), "latest", {text});
//
// Errors are io_error with the file and the system's reason.
#pragma once

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
[[noreturn]] void fail_at(const std::string& path, const char* what);

/// The kind of file that a mode denotes, such as "a folder"; null for a regular file.
const char* kind_other_than_file(mode_t mode);

/// A file opened for reading. Throws io_error unless `path` is a regular file: opening a FIFO does not block,
/// and devices are not read.
class input_file {
 public:
  explicit input_file(std::string path);

  const std::string& path() const { return path_; }
  /// Size in bytes when it was opened.
  std::uint64_t size() const { return size_; }

  /// Reads `bytes` bytes from offset `at`. Throws io_error if the file ends before that.
  void read(std::uint64_t at, char* to, std::size_t bytes) const;
  /// The whole content. Throws io_error if the file is larger than `most` bytes.
  std::string text(std::uint64_t most = std::uint64_t{1} << 40) const;

 private:
  std::string path_;
  descriptor file_;
  std::uint64_t size_ = 0;
};

/// Parts of a file, in order.
using file_parts = std::vector<std::string_view>;

/// Whether `path` names the open file, other than through a symbolic link.
bool is_at(const std::string& path, int file);

/// The folder of `path`: everything before the last slash, "." without a slash.
std::string parent_of(const std::string& path);

/// A new file, written piece by piece. It is removed unless `finish` was reached.
class new_file {
 public:
  /// Throws io_error if the name exists.
  new_file(file_calls& calls, std::string path);
  /// Takes over the open file that was created there.
  new_file(file_calls& calls, std::string path, int file)
      : calls_(&calls), path_(std::move(path)), file_(file) {}
  new_file(const new_file&) = delete;
  new_file& operator=(const new_file&) = delete;
  ~new_file() {
    if (finished_) return;
    if (file_ < 0 || is_at(path_, file_)) calls_->remove(path_);
    if (file_ >= 0) calls_->close(file_);
  }

  int number() const { return file_; }

  void append(std::string_view part);
  /// Sets its permissions.
  void set_mode(mode_t mode);
  /// Everything appended is on the disk when this returns.
  void sync();
  /// The content is on the disk when this returns; the name is only once the folder is synced.
  void finish();

 private:
  file_calls* calls_;
  std::string path_;
  int file_;
  bool finished_ = false;
};

/// The exclusive right to a path, however it is spelled: while a thread has it, other threads of the process
/// wait for it.
class path_claim {
 public:
  explicit path_claim(const std::string& path);
  path_claim(const path_claim&) = delete;
  path_claim& operator=(const path_claim&) = delete;
  ~path_claim();

 private:
  std::string path_;
};

/// Writes a new file, whose content is on the disk when this returns; its name is only once the folder is
/// synced. Throws io_error, with the file removed, if writing fails or the name exists.
void write_new_file(file_calls& calls, const std::string& path, const file_parts& parts);

/// Returns when the directory entries of a folder are on the disk; throws io_error on failure.
inline void sync_folder(file_calls& calls, const std::string& path) {
  if (calls.sync_folder(path) != 0) fail_at(path, "cannot be synced");
}

/// Replaces a file atomically: at any moment, even after a power failure, `path` has the whole old or the
/// whole new content. The file keeps its permissions. Threads that replace the same file do so one after the
/// other; a process that tries while another process does gets an io_error. The temporary file is
/// `path`.partial, locked by flock; it is removed unless `finish` is reached. A temporary file left by a
/// killed process is replaced. On file systems without locks, `finish` throws if another process has replaced
/// the temporary file.
class replacement_file {
 public:
  /// Throws io_error if `path` is not a regular file, another process is replacing it, or the temporary file
  /// cannot be written.
  replacement_file(file_calls& calls, std::string path);

  void append(std::string_view part) { file_.append(part); }
  /// Everything appended is on the disk when this returns; `path` still has the old content.
  void sync() { file_.sync(); }
  void finish();

 private:
  static std::string partial_of(const std::string& path) { return path + ".partial"; }
  /// Creates the temporary file, empty and locked, and returns its descriptor.
  static int created(file_calls& calls, const std::string& path);
  /// Removes an existing file with the name of the temporary file, unless it is locked.
  static void remove_stale(file_calls& calls, const std::string& path);
  /// Locks a temporary file; throws io_error if another process has locked it.
  static void lock(const std::string& path, int file);

  file_calls* calls_;
  std::string path_;
  path_claim claim_;
  new_file file_;
  descriptor lock_;  // the same open file, whose lock is kept until it is renamed
};

/// Replaces a file atomically by these parts; see replacement_file. Throws io_error on failure.
void replace_file(file_calls& calls, const std::string& path, const file_parts& parts);

/// Creates a folder and its parents; no error if it exists. Throws io_error if it cannot be created.
void make_folders(file_calls& calls, const std::string& path);

/// The names in a folder in ascending order, without "." and "..". Throws io_error if it cannot be listed.
std::vector<std::string> names_in(const std::string& folder);

/// Deletes a file, or a folder and everything in it, without following links; no error if it does not exist.
void remove_tree(file_calls& calls, const std::string& path);

}  // namespace weft::io

#ifndef WEFT_COMPILED
#include <weft/io/impl/files.ipp>
#endif
