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

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <deque>
#include <map>
#include <thread>
#include <utility>  // Boost 1.74 forgets it

#include <boost/asio.hpp>

#include <weft/comm/handshake.hpp>
#include <weft/comm/store_table.hpp>

namespace weft {

namespace detail {

using boost::asio::ip::tcp;
using net_error = boost::system::error_code;

inline std::array<char, 4> frame_length(std::size_t n) {
  return {static_cast<char>(n), static_cast<char>(n >> 8), static_cast<char>(n >> 16),
          static_cast<char>(n >> 24)};
}
inline std::size_t length_of(const std::array<char, 4>& b) {
  std::size_t n = 0;
  for (std::size_t i = 4; i-- > 0;) n = n << 8 | static_cast<unsigned char>(b[i]);
  return n;
}

/// What a connection requires of its server.
class store_host {
 public:
  explicit store_host(const tcp_store_limits& l) : limits(l), table(l) {}
  virtual ~store_host() = default;
  virtual bool admit(
      std::uint64_t client) = 0;  // a client that has authenticated; false: there are too many
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

  void start() {
    nonce_ = random_bytes(nonce_bytes);
    incoming_.resize(nonce_bytes + proof_bytes);
    end_after(arrival_, of_.limits.handshake);
    send(nonce_);
    read(boost::asio::buffer(incoming_), [this] { check_proof(); });
  }
  void answer(const store_reply& r) {
    const auto length = frame_length(r.size());
    send(std::string(length.begin(), length.end()) + *r.head, r.body);
  }
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
  void end_after(boost::asio::steady_timer& timer, std::chrono::seconds limit) {
    timer.expires_after(limit);
    timer.async_wait(then([this, &timer] {
      if (timer.expiry() <= std::chrono::steady_clock::now())
        close();  // else it was stopped at the moment it expired
    }));
  }
  static void stop(boost::asio::steady_timer& timer) {
    timer.expires_at(std::chrono::steady_clock::time_point::max());
  }

  void check_proof() {
    stop(arrival_);
    const std::string theirs = incoming_.substr(0, nonce_bytes), given = incoming_.substr(nonce_bytes);
    const bool proved = proves(given, proof(of_.token, "client", nonce_ + theirs));
    leaves_ = !proved || !of_.admit(id_);
    if (leaves_) return send(proved ? refused_full : refused_token);
    probe_when_silent();
    reads_ = false;
    send(proof(of_.token, "server", nonce_ + theirs));
  }
  /// Enables TCP keep-alive, so that the connection to a machine that has vanished is closed.
  void probe_when_silent() {
    const int on = 1, idle = static_cast<int>(of_.limits.probe.count()), between = std::max(1, idle / 3),
              probes = 3;
    const int s = socket_.native_handle();
    ::setsockopt(s, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
#ifdef TCP_KEEPIDLE
    ::setsockopt(s, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    ::setsockopt(s, IPPROTO_TCP, TCP_KEEPINTVL, &between, sizeof between);
    ::setsockopt(s, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
#endif
  }

  void next() {
    if (reads_ || leaves_ || !outgoing_.empty()) return;
    reads_ = true;
    read(boost::asio::buffer(length_), [this] { begin_request(length_of(length_)); });
  }
  void begin_request(std::size_t n) {
    end_after(arrival_, of_.limits.stall);
    std::string refusal;
    if (n > of_.limits.request)
      refusal = std::to_string(n) + " bytes, and a request has at most " +
                std::to_string(of_.limits.request) + " (tcp_store_limits::request)";
    else if (n > small && !of_.table.memory().fits(n))
      refusal = of_.table.memory().refusal(n);
    if (!refusal.empty()) return refuse(n, refusal);
    incoming_.resize(n);
    if (n > small) request_held_.emplace(of_.table.memory(), n);
    read(boost::asio::buffer(incoming_), [this] {
      stop(arrival_);
      std::string request = std::exchange(incoming_, {});
      request_held_.reset();
      reads_ = false;
      of_.deliver(of_.table.handle(id_, std::move(request)));
      next();
    });
  }
  /// Reads the beginning of a request, to answer it, and skips the rest.
  void refuse(std::size_t n, const std::string& why) {
    incoming_.resize(std::min(n, small));
    read(boost::asio::buffer(incoming_), [this, n, why] {
      frame_reader r(incoming_);
      const std::int64_t number = r.number();
      const auto what = static_cast<store_operation>(r.byte());
      using enum store_operation;
      if (what == get || what == wait || what == check) r.length();  // of the list: its first key is shown
      const std::size_t key = std::min(r.length(), r.left());
      const std::string text =
          std::string("weft: store: ") + name_of(what) + " " + shown(r.rest().substr(0, key)) + ": " + why;
      pass_over(n - incoming_.size(), number, text);
    });
  }
  void pass_over(std::size_t left, std::int64_t number, const std::string& why) {
    if (left == 0) {
      stop(arrival_);
      incoming_ = {};
      reads_ = false;
      of_.deliver(of_.table.refuse(id_, number, why));
      return next();
    }
    incoming_.resize(std::min<std::size_t>(left, 65536));
    read(boost::asio::buffer(incoming_),
         [this, left, number, why] { pass_over(left - incoming_.size(), number, why); });
  }

  void send(std::string head, shared_value body = nullptr) {
    outgoing_.push_back({std::move(head), std::move(body)});
    if (outgoing_.size() == 1) write();
  }
  void write() {
    const message& m = outgoing_.front();
    const std::array<boost::asio::const_buffer, 2> bytes{
        boost::asio::buffer(m.head),
        m.body ? boost::asio::buffer(m.body->bytes) : boost::asio::const_buffer()};
    end_after(departure_, of_.limits.stall);
    boost::asio::async_write(socket_, bytes, then([this] {
      stop(departure_);
      outgoing_.pop_front();
      if (!outgoing_.empty()) return write();
      leaves_ ? close() : next();
    }));
  }

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
  /// Port 0 selects a free one; see port(). Throws comm_error if it cannot listen there, usage_error if the
  /// address can be reached from other machines and there is no token.
  tcp_store_server(const std::string& address, int port, std::string with_token,
                   const tcp_store_limits& with = {})
      : store_host(with), acceptor_(io_), pause_(io_) {
    token = std::move(with_token);
    rlimit files{};
    most_strangers_ = limits.strangers;  // as the rest of the process needs descriptors, too
    if (::getrlimit(RLIMIT_NOFILE, &files) == 0)
      most_strangers_ = std::min<std::size_t>(most_strangers_, files.rlim_cur / 4);
    listen(address, port);
    accept();
    thread_ = std::thread([this] { serve(); });
  }
  tcp_store_server(const tcp_store_server&) = delete;
  tcp_store_server& operator=(const tcp_store_server&) = delete;
  ~tcp_store_server() override {
    io_.stop();
    thread_.join();
  }

  int port() const { return port_; }

 private:
  using session = std::shared_ptr<detail::store_session>;

  void listen(const std::string& address, int port) {
    detail::net_error e;
    detail::tcp::resolver resolver(io_);
    const auto found = resolver.resolve(address, std::to_string(port), e);
    if (e || found.empty())
      throw comm_error("weft: store: there is no address " + address + ": " + e.message());
    const detail::tcp::endpoint at = found.begin()->endpoint();
    if (token.empty() && !at.address().is_loopback())
      throw usage_error("weft: store: listening on " + address +
                        " needs a token that all ranks know (WEFT_JOB_TOKEN)");
    acceptor_.open(at.protocol(), e);
    if (!e) acceptor_.set_option(detail::tcp::acceptor::reuse_address(true), e);
    if (!e) acceptor_.bind(at, e);
    if (!e) acceptor_.listen(boost::asio::socket_base::max_listen_connections, e);
    if (e)
      throw comm_error("weft: store: cannot listen on " + address + ":" + std::to_string(port) + ": " +
                       e.message());
    port_ = acceptor_.local_endpoint().port();
  }
  void serve() {
    for (;;) try {
        io_.run();
        return;
      } catch (const std::exception&) {  // no memory for one more connection: the others continue
      }
  }

  void accept() {
    acceptor_.async_accept([this](detail::net_error e, detail::tcp::socket s) {
      using namespace boost::asio::error;
      if (e == operation_aborted) return;
      const bool exhausted = e == no_descriptors || e == no_buffer_space || e == no_memory ||
                             e == boost::system::errc::too_many_files_open_in_system;
      if (!e) welcome(std::move(s));
      else if (exhausted && strangers_.empty()) return accept_later();
      else if (exhausted) strangers_.begin()->second->close();
      accept();
    });
  }
  /// Waits, as the pending connection stays in the kernel's queue and would make every accept fail at once.
  void accept_later() {
    pause_.expires_after(std::chrono::milliseconds(100));
    pause_.async_wait([this](detail::net_error e) {
      if (!e) accept();
    });
  }
  void welcome(detail::tcp::socket s) {
    if (strangers_.size() >= most_strangers_ && !strangers_.empty()) strangers_.begin()->second->close();
    try {
      detail::store_host& host = *this;
      const auto one = std::make_shared<detail::store_session>(host, io_, std::move(s), ++arrived_);
      strangers_[arrived_] = one;
      one->start();
    } catch (const std::exception&) {
      forget(arrived_);
    }
  }

  bool admit(std::uint64_t client) override {
    const auto found = strangers_.find(client);
    if (clients_.size() >= limits.clients || found == strangers_.end()) return false;
    clients_.insert(strangers_.extract(found));
    return true;
  }
  void deliver(const std::vector<detail::store_reply>& replies) override {
    for (const detail::store_reply& r : replies) {
      const auto found = clients_.find(r.client);
      if (found == clients_.end()) continue;
      const session to = found->second;
      if (r.head) to->answer(r);
      else to->close();
    }
  }
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
