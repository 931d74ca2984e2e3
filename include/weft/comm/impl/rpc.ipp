// SPDX-License-Identifier: MIT
// Definitions of <weft/comm/rpc.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/base/deadline.hpp>
#include <weft/comm/handshake.hpp>
#include <weft/comm/rpc.hpp>

namespace weft {
namespace detail {

WEFT_DEFINE rpc_calls::rpc_calls(std::shared_ptr<store> s)
    : store_(std::move(s)), last_(frame_reader(random_bytes(8)).number() >> 2) {}  // far from an overflow

WEFT_DEFINE std::string rpc_calls::finish(std::int64_t number, store::milliseconds limit, int to,
                                          const std::string& function, const std::string& request) {
  const auto until = deadline_after(limit);
  const finished over{*this, number};
  store_->push("rpc/to/" + std::to_string(to), request);
  const std::string who = function + " on rank " + std::to_string(to);
  std::unique_lock lock(mutex_);
  const auto found = answers_.find(number);
  if (!changed_.wait_until(lock, until, [&] { return found->second || !over_.empty(); }))
    throw timeout_error("weft: rpc: rank " + std::to_string(to) + " has not answered " + function +
                        " within " + std::to_string(limit.count()) + " ms");
  if (!found->second) throw comm_error("weft: rpc: " + who + ": " + over_);
  frame_reader r(*std::move(found->second));
  const bool good = r.byte() == 1;
  std::string text = r.text();
  if (!good) throw comm_error("weft: rpc: " + who + ": " + text);
  return text;
}

WEFT_DEFINE void rpc_calls::answered(std::string bytes) {
  frame_reader r(std::move(bytes));
  const std::int64_t number = r.number();
  const std::lock_guard lock(mutex_);
  if (const auto found = answers_.find(number); found != answers_.end()) found->second = r.rest();
  changed_.notify_all();
}

}  // namespace detail

WEFT_DEFINE rpc_agent::rpc_agent(const connect& to_store, int rank, int size)
    : rank_(rank), size_(size), calls_(std::make_shared<detail::rpc_calls>(to_store())) {
  answers_ = std::jthread([this, from = to_store()](std::stop_token stop) { take_answers(*from, stop); });
  requests_ = std::jthread([this, from = to_store()](std::stop_token stop) { take_requests(*from, stop); });
}

WEFT_DEFINE void rpc_agent::send(detail::rpc_answer& a) {
  const std::string queue = "rpc/answers/" + std::to_string(a.to);
  try {
    calls_->out().push(queue, a.bytes());
  } catch (const value_error& refused) {
    a.good = false;
    a.text = refused.what();
    try {
      calls_->out().push(queue, a.bytes());
    } catch (const value_error&) {  // nor is the error message accepted: the caller times out
    }
  }
}

}  // namespace weft
