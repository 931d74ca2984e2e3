// SPDX-License-Identifier: MIT
// A file in memory, for tests that write thousands of files.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <stdexcept>
#include <string>
#include <string_view>

/// An unnamed file, which can be opened by its path as long as this object lives.
class memory_file {
 public:
  memory_file() : file_(::memfd_create("weft_test", MFD_CLOEXEC)) {
    if (file_ < 0) throw std::runtime_error("no file in memory");
  }
  memory_file(const memory_file&) = delete;
  memory_file& operator=(const memory_file&) = delete;
  ~memory_file() { ::close(file_); }

  std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }
  /// Sets the content.
  void write(std::string_view bytes) const { set_size(0), write_at(0, bytes); }
  /// Bytes that were never written are zero, and take no memory.
  void set_size(off_t size) const { check(::ftruncate(file_, size) == 0); }
  void write_at(off_t at, std::string_view bytes) const {
    check(::pwrite(file_, bytes.data(), bytes.size(), at) == static_cast<ssize_t>(bytes.size()));
  }

 private:
  static void check(bool done) {
    if (!done) throw std::runtime_error("the file in memory cannot be written");
  }

  int file_;
};
