// SPDX-License-Identifier: MIT
// Definitions of <weft/io/folder_lock.hpp>.
#pragma once

#include <sys/file.h>

#include <thread>

#include <weft/base/blocked_signals.hpp>
#include <weft/base/config.hpp>
#include <weft/base/deadline.hpp>
#include <weft/io/folder_lock.hpp>

namespace weft {
namespace io {

WEFT_DEFINE folder_lock::folder_lock(const std::string& folder, std::chrono::milliseconds patience)
    : path_(folder + "/lock"),
      file_(::open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666)) {
  struct stat is{};
  if (file_.number() < 0 || ::fstat(file_.number(), &is) != 0) fail_at(path_, "cannot be opened");
  if (const char* other = kind_other_than_file(is.st_mode))
    throw io_error("weft: " + path_ + ": is " + other + ", not a file");
  const auto deadline = deadline_after(patience);
  while (::flock(file_.number(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) fail_at(path_, "cannot be locked");
    if (std::chrono::steady_clock::now() >= deadline)
      throw io_error("weft: " + folder + ": is in use by " + owner());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  char host[64] = {};
  ::gethostname(host, sizeof host - 1);
  const std::string me = "process " + std::to_string(::getpid()) + " on " + host + "\n";
  const blocked_signals blocked{SIGXFSZ};
  if (::ftruncate(file_.number(), 0) == 0)  // informative only: a full disk is not an error
    (void)!::pwrite(file_.number(), me.data(), me.size(), 0);
}

WEFT_DEFINE void folder_lock::require_held() const {
  if (!is_at(path_, file_.number()))
    throw io_error("weft: " + path_ + ": was deleted or replaced while this process held it");
}

WEFT_DEFINE std::string folder_lock::owner() const {
  char text[128] = {};
  const ssize_t n = ::pread(file_.number(), text, sizeof text - 1, 0);
  std::string who(text, static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  who = who.substr(0, who.find('\n'));
  return who.starts_with("process ") ? who : "another process";
}

}  // namespace io
}  // namespace weft
