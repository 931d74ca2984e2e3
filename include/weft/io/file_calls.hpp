// SPDX-License-Identifier: MIT
// The system calls that change files, in one place: a test puts others in their place, which fail, or which
// record what was written in what order.
//
// All return what POSIX says, -1 with errno set where they fail. Nothing is written through a symbolic link,
// and nothing that is there is opened for writing.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <string>

namespace weft::io {

class file_calls {
 public:
  virtual ~file_calls() = default;

  /// A new, empty file to be written; fails if there is something of this name. Returns its descriptor.
  virtual int create(const std::string& path) {
    return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  }
  /// May write less, as ::write.
  virtual ssize_t write(int file, const char* from, std::size_t bytes) { return ::write(file, from, bytes); }
  /// Returns when all that was written is on the disk.
  virtual int sync(int file) { return ::fsync(file); }
  virtual int close(int file) { return ::close(file); }

  virtual int make_folder(const std::string& path) { return ::mkdir(path.c_str(), 0777); }
  /// Returns when the names in a folder are on the disk. File systems that cannot do that for folders do it
  /// always.
  virtual int sync_folder(const std::string& path) {
    const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return -1;
    const int result = ::fsync(folder) == 0 || errno == EINVAL || errno == ENOTSUP ? 0 : -1;
    const int reason = errno;
    ::close(folder);
    errno = reason;
    return result;
  }
  /// Gives a file or folder a new name; what had this name is gone, if it was a file and `from` is one.
  virtual int rename(const std::string& from, const std::string& to) {
    return std::rename(from.c_str(), to.c_str());
  }
  virtual int remove(const std::string& path) { return ::unlink(path.c_str()); }
  virtual int remove_folder(const std::string& path) { return ::rmdir(path.c_str()); }
};

/// Those of the system.
inline file_calls& system_calls() {
  static file_calls calls;
  return calls;
}

}  // namespace weft::io
