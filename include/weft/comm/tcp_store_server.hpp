// SPDX-License-Identifier: MIT
// The server of a TCP store (Boost.Asio): one thread, any number of clients within limits.
//
//   tcp_store_server server("10.0.0.1", 29500, token);
//   tcp_store_server small("10.0.0.1", 29501, token, {.bytes = 1 << 20});
//
// It listens on the given address only. Both sides authenticate by the job's token; connections are not
// encrypted (docs/security.md). Unauthenticated connections are limited in number and time, and new ones
// close the oldest, so that a flood of them cannot keep a client out. A client that sends malformed data is
// disconnected.
#pragma once

#include <sys/socket.h>

#include <array>
#include <deque>
#include <map>
#include <thread>
#include <utility>  // missing in Boost 1.74

#include <boost/asio.hpp>

#include <weft/comm/handshake.hpp>
#include <weft/comm/store_table.hpp>

namespace weft {

namespace detail {

using boost::asio::ip::tcp;
using net_error = boost::system::error_code;

/// What a connection requires of its server.
class store_host {
 public:
  explicit store_host(const tcp_store_limits& l) : limits(l), table(l) {}
  virtual ~store_host() = default;
  virtual bool admit(
      std::uint64_t client) = 0;  // called for a client that has authenticated; false if there are too many
  virtual void deliver(const std::vector<store_reply>& replies) = 0;
  virtual void forget(std::uint64_t client) = 0;

  const tcp_store_limits limits;
  store_table table;
  std::string token;
};

/// The connection of a client. Everything runs on the server's thread. It reads the next request when its
/// last answer has been sent.
class store_session : public std::enable_shared_from_this<store_session> {
 public:
  store_session(store_host& of, boost::asio::io_context& io, tcp::socket s, std::uint64_t id)
      : of_(of), socket_(std::move(s)), arrival_(io), departure_(io), id_(id) {}

  void start();
  void answer(const store_reply& r);
  void close() {
    net_error ignored;
    socket_.close(ignored);
    stop(arrival_);
    stop(departure_);
    of_.forget(id_);
  }

 private:
  struct message {
    std::string head;
    shared_value body;
  };
  static constexpr std::size_t small = 4096;  // bytes of a request that is accepted even if the store is full

  /// A completion handler that keeps the connection alive; errors and exceptions close the connection.
  template <class F>
  auto then(F f) {
    return [self = shared_from_this(), f](net_error e, auto...) {
      if (e == boost::asio::error::operation_aborted) return;
      try {
        e ? self->close() : f();
      } catch (const std::exception&) {
        self->close();
      }
    };
  }
  template <class Buffer, class F>
  void read(const Buffer& into, F f) {
    boost::asio::async_read(socket_, into, then(f));
  }
  void end_after(boost::asio::steady_timer& timer, std::chrono::seconds limit);
  static void stop(boost::asio::steady_timer& timer) {
    timer.expires_at(std::chrono::steady_clock::time_point::max());
  }

  void check_proof();
  /// Enables TCP keep-alive, so that the connection to a machine that has vanished is closed.
  void probe_when_silent();

  void next();
  void begin_request(std::size_t n);
  /// Reads the beginning of a request, to answer it, and skips the rest.
  void refuse(std::size_t n, const std::string& why);
  void pass_over(std::size_t left, std::int64_t number, const std::string& why);

  void send(std::string head, shared_value body = nullptr) {
    outgoing_.push_back({std::move(head), std::move(body)});
    if (outgoing_.size() == 1) write();
  }
  void write();

  store_host& of_;
  tcp::socket socket_;
  boost::asio::steady_timer arrival_, departure_;
  std::uint64_t id_;
  std::string nonce_, incoming_;
  std::array<char, 4> length_{};
  std::optional<charge> request_held_;
  std::deque<message> outgoing_;
  bool reads_ = true;    // false between two requests
  bool leaves_ = false;  // closes when the last answer has been sent
};

}  // namespace detail

/// Serves a store to ranks until it is destroyed.
class tcp_store_server : private detail::store_host {
 public:
  /// Port 0 selects a free one; see port(). Throws usage_error if it cannot listen there, or if the address
  /// can be reached from other machines and there is no token.
  tcp_store_server(const std::string& address, int port, std::string with_token,
                   const tcp_store_limits& with = {});
  tcp_store_server(const tcp_store_server&) = delete;
  tcp_store_server& operator=(const tcp_store_server&) = delete;
  ~tcp_store_server() override {
    io_.stop();
    thread_.join();
  }

  int port() const { return port_; }

 private:
  using session = std::shared_ptr<detail::store_session>;

  void listen(const std::string& address, int port);
  void serve() {
    for (;;) try {
        io_.run();
        return;
      } catch (const std::exception&) {  // no memory for one more connection: the others continue
      }
  }

  void accept();
  /// Waits, as the pending connection stays in the kernel's queue and would make every accept fail at once.
  void accept_later();
  void welcome(detail::tcp::socket s);

  bool admit(std::uint64_t client) override;
  void deliver(const std::vector<detail::store_reply>& replies) override;
  void forget(std::uint64_t client) override {
    table.forget(client);
    strangers_.erase(client);
    clients_.erase(client);
  }

  boost::asio::io_context io_;
  detail::tcp::acceptor acceptor_;
  boost::asio::steady_timer pause_;
  int port_ = 0;
  std::size_t most_strangers_ = 0;
  std::uint64_t arrived_ = 0;
  std::map<std::uint64_t, session> strangers_, clients_;  // the oldest first
  std::thread thread_;
};

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/comm/impl/tcp_store_server.ipp>
#endif
