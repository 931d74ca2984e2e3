// SPDX-License-Identifier: MIT
// Definitions of <weft/comm/watch_socket.hpp>.
#pragma once

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>

#include <weft/base/config.hpp>
#include <weft/comm/watch_socket.hpp>

namespace weft {
namespace detail {

WEFT_DEFINE wake_up::wake_up() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!fd_) throw comm_error(std::string("weft: eventfd: ") + std::strerror(errno));
}

WEFT_DEFINE void wake_up::now() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(fd_.number(), &one, sizeof one);
}

WEFT_DEFINE frame_socket::frame_socket(descriptor fd) : fd_(std::move(fd)) {
  const int on = 1;
  ::setsockopt(fd_.number(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::fcntl(fd_.number(), F_SETFL, O_NONBLOCK);
}

WEFT_DEFINE short frame_socket::events() const {
  return static_cast<short>(leaving_.empty() ? POLLIN : POLLIN | POLLOUT);
}

WEFT_DEFINE void frame_socket::send(const std::string& frame) {
  leaving_ += frame_writer().text(frame).take();
  flush();
}

WEFT_DEFINE void frame_socket::flush() {
  while (!leaving_.empty()) {
    const auto n = ::send(fd_.number(), leaving_.data(), leaving_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) leaving_.erase(0, static_cast<std::size_t>(n));
    else if (errno == EAGAIN || errno == EWOULDBLOCK) return;
    else if (errno != EINTR) return leaving_.clear();  // the connection is closed, which receive() finds
  }
}

WEFT_DEFINE bool frame_socket::receive() {
  char part[4096];
  for (;;) {
    const auto n = ::recv(fd_.number(), part, sizeof part, MSG_DONTWAIT);
    if (n > 0) arrived_.append(part, static_cast<std::size_t>(n));
    else if (n < 0 && errno == EINTR) continue;
    else return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    if (arrived_.size() > 2 * most) return true;  // frames are taken out first
  }
}

WEFT_DEFINE std::optional<std::string> frame_socket::next(std::size_t limit) {
  if (arrived_.size() < 4) return {};
  const std::size_t n = frame_reader(arrived_.substr(0, 4)).length();
  if (n > limit) throw comm_error("weft: a frame is too long");
  if (arrived_.size() < 4 + n) return {};
  std::string frame = arrived_.substr(4, n);
  arrived_.erase(0, 4 + n);
  return frame;
}

WEFT_DEFINE address_list::address_list(const std::string& host, const std::string& port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  if (const int failed = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &first))
    throw comm_error("weft: there is no address " + host + ": " + ::gai_strerror(failed));
}

WEFT_DEFINE descriptor listen_on(const std::string& host, int& port) {
  const address_list at(host, "0", AI_PASSIVE);
  descriptor fd(::socket(at.first->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (!fd || ::bind(fd.number(), at.first->ai_addr, at.first->ai_addrlen) != 0 ||
      ::listen(fd.number(), 1024) != 0 ||
      ::getsockname(fd.number(), reinterpret_cast<sockaddr*>(&bound), &length) != 0)
    throw usage_error("weft: cannot listen on " + host + ": " + std::strerror(errno));
  port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
  return fd;
}

WEFT_DEFINE descriptor connect_to(const std::string& host, const std::string& port,
                                  std::chrono::milliseconds limit) {
  const address_list at(host, port, 0);
  descriptor fd(::socket(at.first->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval longest{.tv_sec = static_cast<time_t>(limit.count() / 1000 + 1), .tv_usec = 0};
  if (fd)
    ::setsockopt(fd.number(), SOL_SOCKET, SO_SNDTIMEO, &longest, sizeof longest);  // also limits connect()
  if (!fd || ::connect(fd.number(), at.first->ai_addr, at.first->ai_addrlen) != 0)
    throw comm_error("weft: cannot reach rank 0 at " + host + ":" + port + ": " + std::strerror(errno));
  return fd;
}

}  // namespace detail
}  // namespace weft
