// SPDX-License-Identifier: MIT
// The system calls that modify files, behind an interface, so that tests can replace them by calls that fail
// or that record what is written in which order.
//
// All return what POSIX specifies, -1 with errno set on failure. Symbolic links are not followed when
// writing, and existing files are not opened for writing.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <string>

#include <weft/base/blocked_signals.hpp>

namespace weft::io {

/// The system calls; a subclass in tests overrides them.
class file_calls {
 public:
  virtual ~file_calls() = default;

  /// Creates an empty file for writing and returns its descriptor; fails if the name exists.
  virtual int create(const std::string& path) {
    return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  }
  /// Writes at most `bytes` bytes and returns how many, as ::write; without the signals SIGPIPE and SIGXFSZ.
  virtual ssize_t write(int file, const char* from, std::size_t bytes) {
    const blocked_signals blocked{SIGPIPE, SIGXFSZ};
    return ::write(file, from, bytes);
  }
  /// Returns when everything that was written is on the disk.
  virtual int sync(int file) { return ::fsync(file); }
  virtual int close(int file) { return ::close(file); }

  virtual int make_folder(const std::string& path) { return ::mkdir(path.c_str(), 0777); }
  /// Returns when the directory entries of a folder are on the disk. File systems that do not support this
  /// call for folders are assumed not to need it.
  virtual int sync_folder(const std::string& path) {
    const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return -1;
    const int result = ::fsync(folder) == 0 || errno == EINVAL || errno == ENOTSUP ? 0 : -1;
    const int reason = errno;
    ::close(folder);
    errno = reason;
    return result;
  }
  /// Sets the permissions of a file that is being written.
  virtual int set_mode(int file, mode_t mode) { return ::fchmod(file, mode); }
  /// Renames a file or folder; an existing file `to` is replaced atomically if `from` is a file.
  virtual int rename(const std::string& from, const std::string& to) {
    return std::rename(from.c_str(), to.c_str());
  }
  virtual int remove(const std::string& path) { return ::unlink(path.c_str()); }
  virtual int remove_folder(const std::string& path) { return ::rmdir(path.c_str()); }
};

/// The calls of the operating system.
inline file_calls& system_calls() {
  static file_calls calls;
  return calls;
}

}  // namespace weft::io
