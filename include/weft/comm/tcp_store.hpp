// SPDX-License-Identifier: MIT
// A store on one process that others reach over TCP (Boost.Asio).
//
//   tcp_store_server server("10.0.0.1", 29500, token);      // rank 0
//   tcp_store store("10.0.0.1", 29500, token);              // every rank
//
// The server listens on the given address only. Both sides prove that they know the job's token,
// by HMAC-SHA256 over numbers the other side has drawn; what follows is not encrypted. Frames,
// clients and stored bytes are bounded; a client that sends anything malformed is dropped.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <random>
#include <thread>
#include <unordered_map>
#include <utility>  // Boost 1.74 forgets it

#include <boost/asio.hpp>

#include <weft/base/sha256.hpp>
#include <weft/comm/store_protocol.hpp>

namespace weft {

namespace detail {

using boost::asio::ip::tcp;
using net_error = boost::system::error_code;

inline std::string random_bytes(std::size_t n) {
  std::random_device from;
  std::string s;
  for (std::size_t i = 0; i < n; ++i) s += static_cast<char>(from());
  return s;
}
inline std::string proof(const std::string& token, const std::string& side, const std::string& numbers) {
  const digest d = hmac_sha256(token, side + numbers);
  return std::string(d.begin(), d.end());
}
inline bool proves(const std::string& given, const std::string& expected) {
  digest a{}, b{};
  std::copy_n(given.begin(), 32, a.begin());
  std::copy_n(expected.begin(), 32, b.begin());
  return equal_in_constant_time(a, b);
}
inline std::array<char, 4> frame_length(std::size_t n) {
  return {static_cast<char>(n), static_cast<char>(n >> 8), static_cast<char>(n >> 16), static_cast<char>(n >> 24)};
}
inline std::size_t length_of(const std::array<char, 4>& b) {
  std::size_t n = 0;
  for (std::size_t i = 4; i-- > 0;) n = n << 8 | static_cast<unsigned char>(b[i]);
  return n;
}
inline constexpr std::size_t nonce_bytes = 32;

}  // namespace detail

struct tcp_store_limits {
  std::size_t clients = 4096;
  std::chrono::seconds handshake{10};  // for a client to prove who it is
};

class tcp_store_server {
 public:
  /// Port 0 takes a free one; see port(). Throws comm_error if it cannot listen there, usage_error
  /// if others than this machine could reach it and there is no token.
  tcp_store_server(const std::string& address, int port, std::string token, tcp_store_limits limits = {})
      : token_(std::move(token)), limits_(limits), acceptor_(io_) {
    detail::net_error e;
    detail::tcp::resolver resolver(io_);
    const auto found = resolver.resolve(address, std::to_string(port), e);
    if (e || found.empty()) throw comm_error("weft: store: there is no address " + address + ": " + e.message());
    const detail::tcp::endpoint at = found.begin()->endpoint();
    if (token_.empty() && !at.address().is_loopback())
      throw usage_error("weft: store: listening on " + address + " needs a token that all ranks know (WEFT_JOB_TOKEN)");
    acceptor_.open(at.protocol(), e);
    if (!e) acceptor_.set_option(detail::tcp::acceptor::reuse_address(true), e);
    if (!e) acceptor_.bind(at, e);
    if (!e) acceptor_.listen(1024, e);
    if (e) throw comm_error("weft: store: cannot listen on " + address + ":" + std::to_string(port) + ": " + e.message());
    port_ = acceptor_.local_endpoint().port();
    accept();
    thread_ = std::thread([this] { io_.run(); });
  }
  tcp_store_server(const tcp_store_server&) = delete;
  tcp_store_server& operator=(const tcp_store_server&) = delete;
  ~tcp_store_server() {
    io_.stop();
    thread_.join();
  }

  int port() const { return port_; }

 private:
  /// A client's connection. Everything runs on the server's thread.
  class session : public std::enable_shared_from_this<session> {
   public:
    session(tcp_store_server& of, detail::tcp::socket s, std::uint64_t id) : of_(of), socket_(std::move(s)), timer_(of.io_), id_(id) {}

    void start() {
      nonce_ = detail::random_bytes(detail::nonce_bytes);
      timer_.expires_after(of_.limits_.handshake);
      timer_.async_wait([self = this->shared_from_this()](detail::net_error e) {
        if (!e && !self->proved_) self->close();
      });
      send_raw(nonce_);
      incoming_.resize(detail::nonce_bytes + 32);
      boost::asio::async_read(socket_, boost::asio::buffer(incoming_), [self = this->shared_from_this()](detail::net_error e, std::size_t) {
        if (e) return self->close();
        self->check_proof();
      });
    }
    void send(const std::string& bytes) {
      const auto length = detail::frame_length(bytes.size());
      send_raw(std::string(length.begin(), length.end()) + bytes);
    }
    void close() {
      detail::net_error ignored;
      socket_.close(ignored);
      timer_.cancel();
      of_.state_.forget(id_);
      of_.sessions_.erase(id_);
    }

   private:
    void check_proof() {
      const std::string theirs = incoming_.substr(0, detail::nonce_bytes);
      if (!detail::proves(incoming_.substr(detail::nonce_bytes), detail::proof(of_.token_, "client", nonce_ + theirs))) return close();
      proved_ = true;
      timer_.cancel();
      send_raw(detail::proof(of_.token_, "server", nonce_ + theirs));
      read_length();
    }
    void read_length() {
      boost::asio::async_read(socket_, boost::asio::buffer(length_), [self = this->shared_from_this()](detail::net_error e, std::size_t) {
        const std::size_t n = detail::length_of(self->length_);
        if (e || n > detail::max_store_frame) return self->close();
        self->read_frame(n);
      });
    }
    void read_frame(std::size_t n) {
      incoming_.resize(n);
      boost::asio::async_read(socket_, boost::asio::buffer(incoming_), [self = this->shared_from_this()](detail::net_error e, std::size_t) {
        if (e) return self->close();
        self->of_.deliver(self->of_.state_.handle(self->id_, std::move(self->incoming_)));
        if (self->socket_.is_open()) self->read_length();
      });
    }
    void send_raw(std::string bytes) {
      outgoing_.push_back(std::move(bytes));
      if (outgoing_.size() == 1) write();
    }
    void write() {
      boost::asio::async_write(socket_, boost::asio::buffer(outgoing_.front()), [self = this->shared_from_this()](detail::net_error e, std::size_t) {
        if (e) return self->close();
        self->outgoing_.pop_front();
        if (!self->outgoing_.empty()) self->write();
      });
    }

    tcp_store_server& of_;
    detail::tcp::socket socket_;
    boost::asio::steady_timer timer_;
    std::uint64_t id_;
    bool proved_ = false;
    std::string nonce_, incoming_;
    std::array<char, 4> length_{};
    std::deque<std::string> outgoing_;
  };

  void accept() {
    acceptor_.async_accept([this](detail::net_error e, detail::tcp::socket s) {
      if (!e && sessions_.size() < limits_.clients) {
        const auto one = std::make_shared<session>(*this, std::move(s), ++clients_);
        sessions_[clients_] = one;
        one->start();
      }
      accept();
    });
  }
  void deliver(const std::vector<detail::store_server_state::reply>& replies) {
    for (const auto& r : replies) {
      const auto found = sessions_.find(r.client);
      if (found == sessions_.end()) continue;
      const std::shared_ptr<session> to = found->second;
      if (r.bytes) to->send(*r.bytes);
      else to->close();
    }
  }

  std::string token_;
  tcp_store_limits limits_;
  boost::asio::io_context io_;
  detail::tcp::acceptor acceptor_;
  int port_ = 0;
  detail::store_server_state state_;
  std::uint64_t clients_ = 0;
  std::unordered_map<std::uint64_t, std::shared_ptr<session>> sessions_;
  std::thread thread_;
};

/// A client. Its operations may be called from several threads; they go one after the other.
class tcp_store : public store {
 public:
  /// Tries until the server answers. Throws timeout_error, or comm_error if the token is another.
  tcp_store(std::string address, int port, const std::string& token, milliseconds limit = default_limit)
      : where_(address + ":" + std::to_string(port)), socket_(io_) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    for (;;) {
      detail::net_error e;
      detail::tcp::resolver resolver(io_);
      const auto found = resolver.resolve(address, std::to_string(port), e);
      if (!e) boost::asio::connect(socket_, found, e);
      if (!e) break;
      if (std::chrono::steady_clock::now() > deadline)
        throw timeout_error("weft: store: nobody answers at " + where_ + " within " + std::to_string(limit.count()) + " ms: " + e.message());
      std::this_thread::sleep_for(milliseconds(20));
    }
    socket_.set_option(detail::tcp::no_delay(true));
    prove(token, limit);
  }

  /// The address of this machine on the network of the server.
  std::string local_address() const { return socket_.local_endpoint().address().to_string(); }

  void set(const std::string& key, const std::string& value) override {
    ask(request(detail::store_operation::set).text(key).text(value));
  }
  std::string get(const std::string& key, milliseconds limit = default_limit) override {
    return ask(request(detail::store_operation::get).texts({key}), limit, {key});
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    return std::stoll(ask(request(detail::store_operation::add).text(key).number(amount)));
  }
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired) override {
    return ask(request(detail::store_operation::compare_set).text(key).text(expected).text(desired));
  }
  bool delete_key(const std::string& key) override { return ask(request(detail::store_operation::delete_key).text(key)) == "1"; }
  bool check(const std::vector<std::string>& keys) override {
    return ask(request(detail::store_operation::check).texts(keys)) == "1";
  }
  std::int64_t num_keys() override {
    detail::frame_writer r = request(detail::store_operation::num_keys);
    return std::stoll(ask(r));
  }
  void wait(const std::vector<std::string>& keys, milliseconds limit = default_limit) override {
    if (!keys.empty()) ask(request(detail::store_operation::wait).texts(keys), limit, keys);
  }

 private:
  static constexpr milliseconds answer_limit{60'000};  // of requests that wait for nobody

  void prove(const std::string& token, milliseconds limit) {
    const std::string theirs = read(detail::nonce_bytes, limit), mine = detail::random_bytes(detail::nonce_bytes);
    write(mine + detail::proof(token, "client", theirs + mine));
    std::string answer;
    try {
      answer = read(32, limit);
    } catch (const comm_error&) {
      throw comm_error("weft: store: " + where_ + " refuses this rank: is WEFT_JOB_TOKEN the same everywhere?");
    }
    if (!detail::proves(answer, detail::proof(token, "server", theirs + mine)))
      throw comm_error("weft: store: who answers at " + where_ + " does not know the job's token");
  }

  detail::frame_writer request(detail::store_operation what) {
    return detail::frame_writer().number(++number_).byte(static_cast<std::uint8_t>(what));
  }

  /// The answer to a request. One that came too late for the request before is passed over.
  std::string ask(detail::frame_writer& r, milliseconds limit = answer_limit, const std::vector<std::string>& waits_for = {}) {
    const std::lock_guard lock(mutex_);
    const std::string bytes = r.take();
    if (bytes.size() > detail::max_store_frame)
      throw value_error("weft: store: a request of " + std::to_string(bytes.size()) + " bytes is too large");
    const std::int64_t number = detail::frame_reader(bytes).number();
    const auto length = detail::frame_length(bytes.size());
    write(std::string(length.begin(), length.end()) + bytes);
    const auto deadline = std::chrono::steady_clock::now() + limit;
    for (;;) {
      const auto left = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
      const auto frame = read_frame(left);
      if (!frame) {
        if (waits_for.empty()) throw timeout_error("weft: store: " + where_ + " has not answered within " + std::to_string(limit.count()) + " ms");
        throw late(waits_for, limit);
      }
      detail::frame_reader a(*frame);
      const std::int64_t answers = a.number();
      const auto status = static_cast<detail::store_status>(a.byte());
      std::string value = a.text();
      if (!a.good()) throw comm_error("weft: store: " + where_ + " answers what is no answer");
      if (answers != number) continue;
      if (status == detail::store_status::wrong) throw value_error(value);
      return value;
    }
  }

  /// The next frame; none if it has not begun within `limit`.
  std::optional<std::string> read_frame(milliseconds limit) {
    if (!readable(limit)) return {};
    const std::string head = read(4, answer_limit);
    std::array<char, 4> length{};
    std::copy(head.begin(), head.end(), length.begin());
    const std::size_t n = detail::length_of(length);
    if (n > detail::max_store_frame + 64) throw comm_error("weft: store: " + where_ + " answers what is no answer");
    return read(n, answer_limit);
  }

  /// Runs an asynchronous operation that `begin` starts, at most so long.
  template <class Begin>
  bool within(milliseconds limit, Begin begin) {
    bool done = false;
    detail::net_error failed;
    begin([&](detail::net_error e, auto...) {
      done = true;
      failed = e;
    });
    io_.restart();
    io_.run_for(std::max(limit, milliseconds(0)));
    if (!done) {
      socket_.cancel();
      io_.restart();
      io_.run();
      if (failed == boost::asio::error::operation_aborted) return false;
    }
    if (failed) throw comm_error("weft: store: the connection to " + where_ + " is lost: " + failed.message());
    return true;
  }
  bool readable(milliseconds limit) {
    return within(limit, [&](auto done) { socket_.async_wait(detail::tcp::socket::wait_read, done); });
  }
  std::string read(std::size_t n, milliseconds limit) {
    std::string bytes(n, '\0');
    if (!within(limit, [&](auto done) { boost::asio::async_read(socket_, boost::asio::buffer(bytes), done); }))
      throw comm_error("weft: store: " + where_ + " has stopped in the middle of an answer");
    return bytes;
  }
  void write(const std::string& bytes) {
    detail::net_error e;
    boost::asio::write(socket_, boost::asio::buffer(bytes), e);
    if (e) throw comm_error("weft: store: the connection to " + where_ + " is lost: " + e.message());
  }

  std::string where_;
  boost::asio::io_context io_;
  detail::tcp::socket socket_;
  std::mutex mutex_;
  std::atomic<std::int64_t> number_ = 0;
};

}  // namespace weft
