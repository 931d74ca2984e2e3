// SPDX-License-Identifier: MIT
// Sockets for failure detection: frames of a length and bytes, and listening on an address.
#pragma once

#include <netdb.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <utility>

#include <weft/base/descriptor.hpp>
#include <weft/base/error.hpp>
#include <weft/comm/store_protocol.hpp>

namespace weft::detail {

/// Wakes a thread that is in poll().
class wake_up {
 public:
  wake_up();
  int get() const { return fd_.number(); }
  void now() const;
  void clear() const {
    std::uint64_t n = 0;
    [[maybe_unused]] const auto read = ::read(fd_.number(), &n, sizeof n);
  }

 private:
  descriptor fd_;
};

/// A connection that transfers frames: a u32 length and bytes. Neither sending nor receiving blocks.
class frame_socket {
 public:
  explicit frame_socket(descriptor fd);
  int get() const { return fd_.number(); }
  /// The events for poll(), after which flush() and receive() have something to do.
  short events() const;

  /// Sends a frame of at most 1 MiB; what the kernel does not take is sent by flush().
  void send(const std::string& frame);
  void flush();
  /// Buffers what has arrived; false if the connection is closed.
  bool receive();
  /// The next complete frame, if there is one. Throws comm_error if it claims more than `limit` bytes.
  std::optional<std::string> next(std::size_t limit = most);

 private:
  static constexpr std::size_t most = 1 << 20;
  descriptor fd_;
  std::string arrived_, leaving_;
};

struct address_list {
  address_list(const std::string& host, const std::string& port, int flags);
  address_list(const address_list&) = delete;
  address_list& operator=(const address_list&) = delete;
  ~address_list() { ::freeaddrinfo(first); }
  addrinfo* first = nullptr;
};

/// Listens on a free port of `host`, an address of this machine. Throws usage_error if it cannot.
descriptor listen_on(const std::string& host, int& port);

descriptor connect_to(const std::string& host, const std::string& port, std::chrono::milliseconds limit);

}  // namespace weft::detail

#ifndef WEFT_COMPILED
#include <weft/comm/impl/watch_socket.ipp>
#endif
