// SPDX-License-Identifier: MIT
// Ranks as processes that a test forks, and their reports.
#pragma once

#include <doctest/doctest.h>

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <string>
#include <vector>

#include <weft/comm/watch_socket.hpp>

namespace weft::test {

inline double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// A port that the system assigns to no other process: bound but not listening, so that rank 0 can listen.
struct kept_port {
  descriptor held{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  int number = 0;
  kept_port() {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    const int on = 1;
    REQUIRE(::setsockopt(held.number(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    REQUIRE(::bind(held.number(), reinterpret_cast<sockaddr*>(&at), size) == 0);
    REQUIRE(::getsockname(held.number(), reinterpret_cast<sockaddr*>(&at), &size) == 0);
    number = ntohs(at.sin_port);
  }
};

struct child {
  pid_t id;
  int pipe;
};

/// A process that writes the result of `f` and ends; it dies with the test.
template <class F>
child fork_rank(F f) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t id = ::fork();
  if (id == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::close(ends[0]);
    const std::string report = f();
    const bool written =
        ::write(ends[1], report.data(), report.size()) == static_cast<ssize_t>(report.size());
    ::_exit(written ? 0 : 1);
  }
  ::close(ends[1]);
  return {id, ends[0]};
}

/// The output of a process, up to its end; empty after half a minute.
inline std::string read_all(int from) {
  std::string text;
  for (;;) {
    pollfd p{from, POLLIN, 0};
    char part[4096];
    if (::poll(&p, 1, 30'000) <= 0) return text;
    const auto n = ::read(from, part, sizeof part);
    if (n <= 0) return text;
    text.append(part, static_cast<std::size_t>(n));
  }
}

inline void end_all(const std::vector<child>& children) {
  for (const child& c : children) {
    ::kill(c.id, SIGKILL);
    ::waitpid(c.id, nullptr, 0);
    ::close(c.pipe);
  }
}

}  // namespace weft::test
