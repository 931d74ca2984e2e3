// SPDX-License-Identifier: MIT
// Definitions of <weft/train/line_log.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/train/line_log.hpp>

namespace weft {

namespace detail {
/// Whether the last line of an open file has no newline; false if the file cannot be read.
inline bool ends_in_line(const std::string& path, const descriptor& file) {
  struct stat is{};
  if (::fstat(file.number(), &is) != 0 || !S_ISREG(is.st_mode) || is.st_size == 0) return false;
  char last = '\n';
  const descriptor in(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  return in && ::pread(in.number(), &last, 1, is.st_size - 1) == 1 && last != '\n';
}
}  // namespace detail

WEFT_DEFINE line_log::line_log(std::string path, bool append)
    : path_(std::move(path)),
      file_(::open(path_.c_str(),
                   O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC | (append ? 0 : O_TRUNC), 0666)) {
  if (path_.empty()) throw io_error("weft: line_log: the path is empty");
  if (file_.number() < 0) io::fail_at(path_, "cannot be written");
  ::fcntl(file_.number(), F_SETFL,
          ::fcntl(file_.number(), F_GETFL) & ~O_NONBLOCK);  // only opening must not block
  is_in_line_ = detail::ends_in_line(path_, file_);
}

WEFT_DEFINE void line_log::line(const std::string& text) {
  if (file_.number() < 0) return;
  const std::string whole = (is_in_line_ ? "\n" : "") + text + '\n';
  struct stat before{};
  const bool is_file = ::fstat(file_.number(), &before) == 0 && S_ISREG(before.st_mode);
  for (std::size_t written = 0; written < whole.size();) {
    const ssize_t n =
        io::system_calls().write(file_.number(), whole.data() + written, whole.size() - written);
    if (n >= 0) {
      written += static_cast<std::size_t>(n);
    } else if (errno != EINTR) {
      const int reason = errno;
      [[maybe_unused]] const int cut =
          is_file && written > 0 ? ::ftruncate(file_.number(), before.st_size) : 0;
      errno = reason;
      io::fail_at(path_, "a line cannot be written");
    }
  }
  is_in_line_ = false;
}

}  // namespace weft
