// SPDX-License-Identifier: MIT
// An owned file descriptor, closed on destruction.
//
//   const descriptor file(::open("x", O_RDONLY | O_CLOEXEC));
//   if (file) ::read(file.number(), ...);
#pragma once

#include <unistd.h>

#include <utility>

namespace weft {

/// Owns at most one file descriptor. Move-only.
class descriptor {
 public:
  /// Takes ownership of `number`; a negative one means none.
  explicit descriptor(int number = -1) : number_(number) {}
  descriptor(descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  descriptor& operator=(descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int number() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }

 private:
  int number_;
};

}  // namespace weft
