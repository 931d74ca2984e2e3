// SPDX-License-Identifier: MIT
// A store in one process that others access over TCP (Boost.Asio).
//
//   tcp_store_server server("10.0.0.1", 29500, token);      // rank 0
//   tcp_store store("10.0.0.1", 29500, token);              // every rank
//
// Both sides authenticate by the job's token; the connection is not encrypted. See tcp_store_server.hpp for
// the limits of the server.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include <weft/comm/tcp_store_server.hpp>

namespace weft {

/// A client. Its operations may be called from several threads and are executed one at a time. An operation
/// throws comm_error when the connection is lost, as do all later ones, and value_error when the server
/// refuses it, naming the limit, the key and the size.
class tcp_store : public store {
 public:
  /// Connects, retrying for `limit` until the server answers. `limit`, but at least a second and at most a
  /// minute, is also the time-out of answers that do not depend on other clients. Throws timeout_error if
  /// there is no server, comm_error if the token differs.
  tcp_store(std::string address, int port, const std::string& token, milliseconds limit = default_limit);

  /// The address of this machine on the server's network.
  std::string local_address() const { return socket_.local_endpoint().address().to_string(); }

  void set(const std::string& key, const std::string& value) override {
    ask(request(operation::set).text(key).text(value));
  }
  std::string get(const std::string& key, milliseconds limit = default_limit) override {
    return ask(request(operation::get).texts({key}), limit, {key}).value;
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    return number_in(ask(request(operation::add).text(key).number(amount)));
  }
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override;
  bool delete_key(const std::string& key) override {
    return ask(request(operation::delete_key).text(key)).value == "1";
  }
  bool check(const std::vector<std::string>& keys) override {
    return ask(request(operation::check).texts(keys)).value == "1";
  }
  std::int64_t num_keys() override { return number_in(ask(request(operation::num_keys).raw(""))); }
  void wait(const std::vector<std::string>& keys, milliseconds limit = default_limit) override {
    if (!keys.empty()) ask(request(operation::wait).texts(keys), limit, keys);
  }
  void push(const std::string& queue, const std::string& value) override {
    ask(request(operation::push).text(queue).text(value));
  }
  std::optional<std::string> pop(const std::string& queue, milliseconds limit = default_limit,
                                 std::stop_token stop = {}) override;

 private:
  using operation = detail::store_operation;
  using status = detail::store_status;
  struct answer {
    detail::store_status how;
    std::string value;
  };
  struct lost_connection : comm_error {
    using comm_error::comm_error;
  };

  /// Connects and authenticates. False, with the reason, if the server is not there yet or has closed the
  /// connection in favour of a newer one, so that a retry can succeed.
  bool joins(const std::string& address, int port, const std::string& token,
             std::chrono::steady_clock::time_point deadline, std::string& why) try {
    const auto left = [&] {
      return std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
    };
    detail::net_error e;
    detail::tcp::resolver resolver(io_);
    const auto found = resolver.resolve(address, std::to_string(port), e);
    if (e) return why = e.message(), false;
    if (!within(left(), [&](auto done) { boost::asio::async_connect(socket_, found, done); }))
      return why = "the connection is not accepted", false;
    socket_.set_option(detail::tcp::no_delay(true));
    const std::string theirs = read(detail::nonce_bytes, left()),
                      mine = detail::random_bytes(detail::nonce_bytes);
    write(mine + detail::proof(token, "client", theirs + mine));
    const std::string given = read(detail::proof_bytes, left());
    const auto refuse = [&](const std::string& text) -> comm_error {
      return comm_error("weft: store: " + where_ + text);
    };
    if (given == detail::refused_token)
      throw refuse(" refuses this rank: is WEFT_JOB_TOKEN the same everywhere?");
    if (given == detail::refused_full) throw refuse(" accepts no more clients (tcp_store_limits::clients)");
    if (!detail::proves(given, detail::proof(token, "server", theirs + mine)))
      throw comm_error("weft: store: the process that answers at " + where_ +
                       " does not know the job's token");
    return true;
  } catch (const lost_connection&) {
    detail::net_error ignored;
    socket_.close(ignored);
    return why = std::exchange(broken_, {}), false;
  }

  detail::frame_writer request(operation what) {
    detail::frame_writer w;
    w.number(++number_).byte(static_cast<std::uint8_t>(what));
    return w;
  }
  /// Sends a request; returns its number.
  std::int64_t send(detail::frame_writer& r);
  /// The answer to request `number`; nullopt if it has not begun to arrive within `limit`, or on a stop
  /// request. Late answers to earlier requests are skipped.
  std::optional<answer> receive(std::int64_t number, milliseconds limit, std::stop_token stop = {});
  answer ask(detail::frame_writer& r, std::optional<milliseconds> limit = {},
             const std::vector<std::string>& waits_for = {});
  static answer& checked(answer& a) {
    if (a.how == status::wrong) throw value_error(a.value);
    return a;
  }
  std::int64_t number_in(const answer& a);

  /// Marks the connection as unusable, because its data can no longer be parsed, and throws.
  [[noreturn]] void lose(const std::string& why);
  [[noreturn]] void silent();

  /// Runs the asynchronous operation started by `begin` until it completes, `limit` has passed or a stop is
  /// requested; returns whether it completed.
  template <class Begin>
  bool within(milliseconds limit, Begin begin, const std::stop_token& stop = {}) {
    bool done = false;
    detail::net_error failed;
    begin([&](detail::net_error e, auto...) {
      done = true;
      failed = e;
    });
    io_.restart();
    {
      const std::stop_callback wake(stop, [this] { boost::asio::post(io_, [this] { cancel(); }); });
      io_.run_for(std::max(limit, milliseconds(0)));
    }
    if (!done) cancel();
    io_.restart();
    io_.run();  // completes what was cancelled, so that nothing posted is left for the next operation
    if (failed == boost::asio::error::operation_aborted) return false;
    if (failed) {
      broken_ = "weft: store: the connection to " + where_ + " is lost: " + failed.message();
      throw lost_connection(broken_);
    }
    return true;
  }
  void cancel() {
    detail::net_error ignored;
    socket_.cancel(ignored);
  }
  /// Reads n bytes, in pieces, so that a length costs memory only as its bytes arrive.
  std::string read(std::size_t n, milliseconds limit);
  void write(const std::string& bytes);

  std::string where_;
  milliseconds answer_limit_;
  boost::asio::io_context io_;
  detail::tcp::socket socket_;
  std::mutex mutex_;
  std::atomic<std::int64_t> number_ = 0;
  std::string broken_;  // why no further request is possible
};

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/comm/impl/tcp_store.ipp>
#endif
