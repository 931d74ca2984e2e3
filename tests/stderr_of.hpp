// SPDX-License-Identifier: MIT
// Captures what code writes to stderr.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>

#include <weft/base/descriptor.hpp>

/// Redirects stderr to a file as long as this object lives.
class stderr_in {
 public:
  explicit stderr_in(int file) : before_(::dup(STDERR_FILENO)) { ::dup2(file, STDERR_FILENO); }
  stderr_in(const stderr_in&) = delete;
  stderr_in& operator=(const stderr_in&) = delete;
  ~stderr_in() { ::dup2(before_.number(), STDERR_FILENO); }

 private:
  weft::descriptor before_;
};

/// What f() writes to stderr, which is not a terminal then.
inline std::string stderr_of(const std::function<void()>& f) {
  char path[] = "/tmp/weft-stderr-XXXXXX";
  const weft::descriptor file(::mkstemp(path));
  if (!file) throw std::runtime_error("no temporary file");
  {
    const stderr_in there(file.number());
    f();
  }
  std::ifstream in(path);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  ::unlink(path);
  return text;
}
