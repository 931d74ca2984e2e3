// SPDX-License-Identifier: MIT
// Writing without signals that would terminate the process.
//
//   const blocked_signals blocked{SIGPIPE, SIGXFSZ};
//   if (::write(file, text, size) < 0) ...   // errno is EPIPE, EFBIG
#pragma once

#include <pthread.h>
#include <signal.h>

#include <cerrno>
#include <ctime>
#include <initializer_list>

namespace weft {

/// Blocks signals during its lifetime, in this thread and in threads that it starts. Signals that arrive
/// meanwhile are discarded, unless they were already pending. Preserves errno.
class blocked_signals {
 public:
  blocked_signals(std::initializer_list<int> signals) {
    sigset_t pending, blocked;
    ::sigpending(&pending);
    ::sigemptyset(&blocked);
    ::sigemptyset(&discarded_);
    for (const int s : signals) {
      ::sigaddset(&blocked, s);
      if (::sigismember(&pending, s) != 1) ::sigaddset(&discarded_, s);
    }
    ::pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  }
  blocked_signals(const blocked_signals&) = delete;
  blocked_signals& operator=(const blocked_signals&) = delete;
  ~blocked_signals() {
    const int reason = errno;
    const timespec now{};
    while (::sigtimedwait(&discarded_, nullptr, &now) > 0 || errno == EINTR) {}
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = reason;
  }

 private:
  sigset_t discarded_, before_;
};

}  // namespace weft
