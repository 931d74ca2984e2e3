// SPDX-License-Identifier: MIT
// Definitions of <weft/comm/tcp_store_server.hpp>.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>

#include <weft/base/config.hpp>
#include <weft/comm/tcp_store_server.hpp>

namespace weft {
namespace detail {

WEFT_DEFINE void store_session::start() {
  nonce_ = random_bytes(nonce_bytes);
  incoming_.resize(nonce_bytes + proof_bytes);
  end_after(arrival_, of_.limits.handshake);
  send(nonce_);
  read(boost::asio::buffer(incoming_), [this] { check_proof(); });
}

WEFT_DEFINE void store_session::answer(const store_reply& r) {
  send(frame_writer().length(r.size()).raw(*r.head).take(), r.body);
}

WEFT_DEFINE void store_session::end_after(boost::asio::steady_timer& timer, std::chrono::seconds limit) {
  timer.expires_after(limit);
  timer.async_wait(then([this, &timer] {
    if (timer.expiry() <= std::chrono::steady_clock::now())
      close();  // otherwise the timer was stopped at the moment it expired
  }));
}

WEFT_DEFINE void store_session::check_proof() {
  stop(arrival_);
  const std::string theirs = incoming_.substr(0, nonce_bytes), given = incoming_.substr(nonce_bytes);
  const bool proved = proves(given, proof(of_.token, "client", nonce_ + theirs));
  leaves_ = !proved || !of_.admit(id_);
  if (leaves_) return send(proved ? refused_full : refused_token);
  probe_when_silent();
  reads_ = false;
  send(proof(of_.token, "server", nonce_ + theirs));
}

WEFT_DEFINE void store_session::probe_when_silent() {
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

WEFT_DEFINE void store_session::next() {
  if (reads_ || leaves_ || !outgoing_.empty()) return;
  reads_ = true;
  read(boost::asio::buffer(length_),
       [this] { begin_request(frame_reader(std::string(length_.begin(), length_.end())).length()); });
}

WEFT_DEFINE void store_session::begin_request(std::size_t n) {
  end_after(arrival_, of_.limits.stall);
  std::string refusal;
  if (n > of_.limits.request)
    refusal = std::to_string(n) + " bytes, and a request has at most " + std::to_string(of_.limits.request) +
              " (tcp_store_limits::request)";
  else if (n > small && !of_.table.memory().fits(n)) refusal = of_.table.memory().refusal(n);
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

WEFT_DEFINE void store_session::refuse(std::size_t n, const std::string& why) {
  incoming_.resize(std::min(n, small));
  read(boost::asio::buffer(incoming_), [this, n, why] {
    frame_reader r(incoming_);
    const std::int64_t number = r.number();
    const auto what = static_cast<store_operation>(r.byte());
    using enum store_operation;
    if (what == get || what == wait || what == check) r.length();  // skipped: the first key is shown
    const std::size_t key = std::min(r.length(), r.left());
    const std::string text =
        std::string("weft: store: ") + name_of(what) + " " + shown(r.rest().substr(0, key)) + ": " + why;
    pass_over(n - incoming_.size(), number, text);
  });
}

WEFT_DEFINE void store_session::pass_over(std::size_t left, std::int64_t number, const std::string& why) {
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

WEFT_DEFINE void store_session::write() {
  const message& m = outgoing_.front();
  const std::array<boost::asio::const_buffer, 2> bytes{
      boost::asio::buffer(m.head), m.body ? boost::asio::buffer(m.body->bytes) : boost::asio::const_buffer()};
  end_after(departure_, of_.limits.stall);
  boost::asio::async_write(socket_, bytes, then([this] {
                             stop(departure_);
                             outgoing_.pop_front();
                             if (!outgoing_.empty()) return write();
                             leaves_ ? close() : next();
                           }));
}

}  // namespace detail

WEFT_DEFINE tcp_store_server::tcp_store_server(const std::string& address, int port, std::string with_token,
                                               const tcp_store_limits& with)
    : store_host(with), acceptor_(io_), pause_(io_) {
  token = std::move(with_token);
  rlimit files{};
  most_strangers_ = limits.strangers;  // because the rest of the process needs descriptors too
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0)
    most_strangers_ = std::min<std::size_t>(most_strangers_, files.rlim_cur / 4);
  listen(address, port);
  accept();
  thread_ = std::thread([this] { serve(); });
}

WEFT_DEFINE void tcp_store_server::listen(const std::string& address, int port) {
  detail::net_error e;
  detail::tcp::resolver resolver(io_);
  const auto found = resolver.resolve(address, std::to_string(port), e);
  if (e || found.empty())
    throw usage_error("weft: store: there is no address " + address + ": " + e.message());
  const detail::tcp::endpoint at = found.begin()->endpoint();
  if (token.empty() && !at.address().is_loopback())
    throw usage_error("weft: store: listening on " + address +
                      " needs a token that all ranks know (WEFT_JOB_TOKEN)");
  acceptor_.open(at.protocol(), e);
  if (!e) acceptor_.set_option(detail::tcp::acceptor::reuse_address(true), e);
  if (!e) acceptor_.bind(at, e);
  if (!e) acceptor_.listen(boost::asio::socket_base::max_listen_connections, e);
  if (e)
    throw usage_error("weft: store: cannot listen on " + address + ":" + std::to_string(port) + ": " +
                      e.message());
  port_ = acceptor_.local_endpoint().port();
}

WEFT_DEFINE void tcp_store_server::accept() {
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

WEFT_DEFINE void tcp_store_server::accept_later() {
  pause_.expires_after(std::chrono::milliseconds(100));
  pause_.async_wait([this](detail::net_error e) {
    if (!e) accept();
  });
}

WEFT_DEFINE void tcp_store_server::welcome(detail::tcp::socket s) {
  if (strangers_.size() >= most_strangers_ && !strangers_.empty()) strangers_.begin()->second->close();
  try {
    detail::store_host& host = *this;
    const auto one = std::make_shared<detail::store_session>(host, io_, std::move(s), ++arrived_);
    strangers_[arrived_] = one;
    one->start();
  } catch (const std::exception&) { forget(arrived_); }
}

WEFT_DEFINE bool tcp_store_server::admit(std::uint64_t client) {
  const auto found = strangers_.find(client);
  if (clients_.size() >= limits.clients || found == strangers_.end()) return false;
  clients_.insert(strangers_.extract(found));
  return true;
}

WEFT_DEFINE void tcp_store_server::deliver(const std::vector<detail::store_reply>& replies) {
  for (const detail::store_reply& r : replies) {
    const auto found = clients_.find(r.client);
    if (found == clients_.end()) continue;
    const session to = found->second;
    if (r.head) to->answer(r);
    else to->close();
  }
}

}  // namespace weft
