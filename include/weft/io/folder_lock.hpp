// SPDX-License-Identifier: MIT
// A lock on a folder for one process at a time. The operating system releases it when the process ends, in
// whatever way.
//
//   const io::folder_lock mine("runs/a", std::chrono::seconds(3));   // io_error: is in use by process 4711
#pragma once

#include <chrono>
#include <string>

#include <weft/io/files.hpp>

namespace weft::io {

/// Holds the lock on a folder until it is destroyed.
class folder_lock {
 public:
  /// Acquires the lock, the file `folder`/lock. Waits up to `patience` for a process that holds it, for
  /// example one that is exiting; then throws io_error with its process id.
  folder_lock(const std::string& folder, std::chrono::milliseconds patience);

  /// Throws io_error if the lock file was deleted or replaced, so that another process could hold a lock as
  /// well.
  void require_held() const;

 private:
  std::string owner() const;

  std::string path_;
  descriptor file_;
};

}  // namespace weft::io

#ifndef WEFT_COMPILED
#include <weft/io/impl/folder_lock.ipp>
#endif
