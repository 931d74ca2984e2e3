// SPDX-License-Identifier: MIT
// CPU memory in files, for rarely used tensors when memory is short. The operating system keeps as much in
// memory as fits.
//
//   const device disk(std::make_shared<cpu::file_backend>("/var/tmp"));
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <string>

#include <weft/base/error.hpp>
#include <weft/device/cpu/backend.hpp>

namespace weft::cpu {

/// The CPU with memory mapped to unnamed files in a folder.
class file_backend : public cpu_backend {
 public:
  /// Files are created in `folder` and unlinked immediately. Throws io_error if that is impossible.
  explicit file_backend(std::string folder) : cpu_backend(1), folder_(std::move(folder)) {
    deallocate(allocate(1), 1);
  }

  const char* name() const override { return "file"; }
  device_room room() const override { return {}; }

  /// Throws out_of_memory_error if the disk or the quota is full: space is reserved, so that later writes
  /// cannot fail.
  void* allocate(std::size_t bytes) override {
    std::string path = folder_ + "/weft-XXXXXX";
    const int file = ::mkstemp(path.data());
    if (file < 0) throw io_error("weft: " + folder_ + ": " + std::strerror(errno));
    ::unlink(path.c_str());
    const auto size = static_cast<off_t>(std::max<std::size_t>(bytes, 1));
    const int full = ::posix_fallocate(file, 0, size);
    void* const memory =
        full ? MAP_FAILED
             : ::mmap(nullptr, static_cast<std::size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    const int reason = full ? full : errno;
    ::close(file);
    if (memory != MAP_FAILED) return memory;
    const std::string what =
        "weft: " + folder_ + ": no room for " + std::to_string(bytes) + " bytes: " + std::strerror(reason);
    if (reason == ENOSPC || reason == EDQUOT || reason == ENOMEM) throw out_of_memory_error(what);
    throw io_error(what);
  }
  void deallocate(void* memory, std::size_t bytes) noexcept override {
    ::munmap(memory, std::max<std::size_t>(bytes, 1));
  }

 private:
  std::string folder_;
};

}  // namespace weft::cpu
