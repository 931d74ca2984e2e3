// SPDX-License-Identifier: MIT
// Definitions of <weft/comm/tcp_store.hpp>.
#pragma once

#include <thread>

#include <weft/base/config.hpp>
#include <weft/base/deadline.hpp>
#include <weft/base/number.hpp>
#include <weft/comm/tcp_store.hpp>

namespace weft {

WEFT_DEFINE tcp_store::tcp_store(std::string address, int port, const std::string& token, milliseconds limit)
    : where_(address + ":" + std::to_string(port)),
      answer_limit_(std::clamp(limit, milliseconds(1'000), milliseconds(60'000))),
      socket_(io_) {
  const auto deadline = deadline_after(limit);
  const milliseconds pause(20);
  for (std::string why; !joins(address, port, token, deadline, why);) {
    if (std::chrono::steady_clock::now() + pause > deadline)
      throw timeout_error("weft: store: nobody answers at " + where_ + " within " +
                          std::to_string(limit.count()) + " ms: " + why);
    std::this_thread::sleep_for(pause);
  }
}

WEFT_DEFINE std::string tcp_store::compare_set(const std::string& key, const std::string& expected,
                                               const std::string& desired) {
  const answer a = ask(request(operation::compare_set).text(key).text(expected).text(desired));
  return a.how == status::absent ? expected : a.value;
}

WEFT_DEFINE std::optional<std::string> tcp_store::pop(const std::string& queue, milliseconds limit,
                                                      std::stop_token stop) {
  const std::lock_guard lock(mutex_);
  const std::int64_t number = send(request(operation::pop).text(queue));
  std::optional<answer> a = receive(number, limit, std::move(stop));
  if (!a) {  // its answer tells whether a value was being sent
    send(request(operation::withdraw).raw(""));
    a = receive(number, answer_limit_);
  }
  if (!a) silent();
  return a->how == status::late ? std::nullopt : std::optional(std::move(checked(*a).value));
}

WEFT_DEFINE std::int64_t tcp_store::send(detail::frame_writer& r) {
  if (!broken_.empty()) throw lost_connection(broken_);
  const std::string bytes = r.take();
  if (bytes.size() > UINT32_MAX)
    throw value_error("weft: store: a request of " + std::to_string(bytes.size()) + " bytes is too large");
  write(detail::frame_writer().text(bytes).take());
  return detail::frame_reader(bytes.substr(0, 8)).number();
}

WEFT_DEFINE std::optional<tcp_store::answer> tcp_store::receive(std::int64_t number, milliseconds limit,
                                                                std::stop_token stop) {
  const auto deadline = deadline_after(limit);
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
    const auto ready = [&](auto done) { socket_.async_wait(detail::tcp::socket::wait_read, done); };
    if (!within(left, ready, stop)) return std::nullopt;
    const std::size_t length = detail::frame_reader(read(4, answer_limit_)).length();
    detail::frame_reader r(read(length, answer_limit_));
    const std::int64_t answers = r.number();
    answer a{static_cast<status>(r.byte()), r.text()};  // braces guarantee the order of reads
    if (!r.at_end()) lose("sent a malformed answer");
    if (answers == number) return a;
  }
}

WEFT_DEFINE tcp_store::answer tcp_store::ask(detail::frame_writer& r, std::optional<milliseconds> limit,
                                             const std::vector<std::string>& waits_for) {
  const std::lock_guard lock(mutex_);
  std::optional<answer> a = receive(send(r), limit.value_or(answer_limit_));
  if (!a && limit) throw late(waits_for, *limit);
  if (!a) silent();
  return checked(*a);
}

WEFT_DEFINE std::int64_t tcp_store::number_in(const answer& a) {
  const auto n = detail::parse_number<std::int64_t>(a.value);
  if (!n) lose("sent an answer that is not a number");
  return *n;
}

WEFT_DEFINE void tcp_store::lose(const std::string& why) {
  broken_ = "weft: store: the connection to " + where_ + " is lost: it " + why;
  throw lost_connection(broken_);
}

WEFT_DEFINE void tcp_store::silent() {
  broken_ =
      "weft: store: " + where_ + " has not answered within " + std::to_string(answer_limit_.count()) + " ms";
  throw timeout_error(broken_);
}

WEFT_DEFINE std::string tcp_store::read(std::size_t n, milliseconds limit) {
  std::string bytes;
  while (bytes.size() < n) {
    const std::size_t at = bytes.size();
    bytes.resize(std::min(n, at + (std::size_t{1} << 20)));
    const auto into = boost::asio::buffer(bytes.data() + at, bytes.size() - at);
    if (!within(limit, [&](auto done) { boost::asio::async_read(socket_, into, done); }))
      lose("stopped in the middle of an answer");
  }
  return bytes;
}

WEFT_DEFINE void tcp_store::write(const std::string& bytes) {
  const auto from = boost::asio::buffer(bytes);
  if (!within(answer_limit_, [&](auto done) { boost::asio::async_write(socket_, from, done); }))
    lose("accepts no request");
}

}  // namespace weft
