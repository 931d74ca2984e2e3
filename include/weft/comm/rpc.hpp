// SPDX-License-Identifier: MIT
// Calls of functions on other ranks: arguments and results travel through a store.
//
//   rpc_agent agent([&] { return std::make_shared<tcp_store>(address, port, token); }, rank, size);
//   agent.serve("add", [](int a, int b) { return a + b; });
//   std::future<int> sum = agent.call<int>(1, "add", 2, 3);
//   sum.get();                                   // throws comm_error with what the function threw
//
// Arguments and results are numbers, structs that can be copied as bytes, strings, and vectors of
// these; what a call sends must have the types that the function takes. For control and small data:
// a call takes about as long as four requests to the store. An agent that is not called sends nothing.
#pragma once

#include <atomic>
#include <condition_variable>
#include <future>
#include <map>
#include <thread>

#include <weft/comm/rpc_protocol.hpp>
#include <weft/comm/store.hpp>

namespace weft {

namespace detail {

/// The calls of an agent that have no answer yet.
class rpc_calls {
 public:
  explicit rpc_calls(std::shared_ptr<store> s) : store_(std::move(s)) {}

  std::int64_t begin() {
    const std::lock_guard lock(mutex_);
    answers_[++last_];
    return last_;
  }
  /// Sends call `number` of `function` to rank `to`; its result as bytes.
  std::string finish(std::int64_t number, store::milliseconds limit, int to, const std::string& function,
                     const std::string& request) {
    const auto until = std::chrono::steady_clock::now() + limit;
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
  /// An answer has come: to a call that still waits, or too late.
  void answered(std::string bytes) {
    frame_reader r(std::move(bytes));
    const std::int64_t number = r.number();
    const std::lock_guard lock(mutex_);
    if (const auto found = answers_.find(number); found != answers_.end()) found->second = r.rest();
    changed_.notify_all();
  }
  /// No more answers come.
  void end(const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (over_.empty()) over_ = why;
    changed_.notify_all();
  }
  store& out() { return *store_; }

 private:
  struct finished {
    rpc_calls& of;
    std::int64_t number;
    ~finished() {
      const std::lock_guard lock(of.mutex_);
      of.answers_.erase(number);
    }
  };

  std::shared_ptr<store> store_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::int64_t, std::optional<std::string>> answers_;
  std::int64_t last_ = 0;
  std::string over_;  // why there are no more
};

}  // namespace detail

class rpc_agent {
 public:
  using connect = std::function<std::shared_ptr<store>()>;
  using milliseconds = std::chrono::milliseconds;

  /// `to_store` gives ways to one store: the same one if it may be used by several threads that wait. Asks
  /// for three. One agent a rank.
  rpc_agent(const connect& to_store, int rank, int size)
      : rank_(rank), size_(size), calls_(std::make_shared<detail::rpc_calls>(to_store())) {
    answers_ = std::jthread([this, from = to_store()](std::stop_token stop) { take_answers(*from, stop); });
    requests_ = std::jthread([this, from = to_store()](std::stop_token stop) { take_requests(*from, stop); });
  }
  rpc_agent(const rpc_agent&) = delete;
  rpc_agent& operator=(const rpc_agent&) = delete;
  /// Waits for a function that runs; calls without an answer fail.
  ~rpc_agent() { calls_->end("the agent that called has ended"); }

  /// What other ranks may call. A function runs on the agent's thread, one call after the other.
  template <class F>
  void serve(const std::string& name, F f) {
    functions_.serve(name, std::move(f));
  }

  /// Calls `function` on rank `to`. The future throws comm_error if it threw, is not served there, or gives
  /// what the store does not take; timeout_error if no answer came in time (it may run all the same);
  /// value_error if the store does not take the call.
  template <class R, class... A>
  std::future<R> call(int to, const std::string& function, const A&... arguments) {
    return call_within<R>(store::default_limit, to, function, arguments...);
  }
  template <class R, class... A>
  std::future<R> call_within(milliseconds limit, int to, const std::string& function, const A&... arguments) {
    if (to < 0 || to >= size_) throw value_error("weft: rpc: there is no rank " + std::to_string(to));
    const std::int64_t number = calls_->begin();
    return std::async(std::launch::async,
                      [calls = calls_, number, limit, to, function,
                       bytes = detail::rpc_request(rank_, number, function, arguments...)] {
                        detail::frame_reader r(calls->finish(number, limit, to, function, bytes));
                        const std::string who = function + " on rank " + std::to_string(to);
                        if constexpr (!std::is_void_v<R>) {
                          R value = detail::read_value<R>(r);
                          if (!r.at_end()) throw comm_error("weft: rpc: " + who + " gives another type");
                          return value;
                        }
                      });
  }

 private:
  static constexpr std::chrono::hours long_enough{24};  // then it waits again

  void take_answers(store& from, std::stop_token stop) try {
    while (!stop.stop_requested())
      if (std::optional<std::string> a = from.pop("rpc/answers/" + std::to_string(rank_), long_enough, stop))
        calls_->answered(*std::move(a));
  } catch (const std::exception& e) {
    calls_->end(e.what());
  }
  void take_requests(store& from, std::stop_token stop) try {
    while (!stop.stop_requested()) {
      std::optional<std::string> request = from.pop("rpc/to/" + std::to_string(rank_), long_enough, stop);
      if (!request) continue;
      std::optional<detail::rpc_answer> a = functions_.answer(*std::move(request), size_);
      if (a) send(*a);
    }
  } catch (const std::exception& e) {  // the store is gone, and with it the job
    calls_->end(e.what());
  }
  void send(detail::rpc_answer& a) {
    const std::string queue = "rpc/answers/" + std::to_string(a.to);
    try {
      calls_->out().push(queue, a.bytes());
    } catch (const value_error& refused) {
      a.good = false;
      a.text = refused.what();
      try {
        calls_->out().push(queue, a.bytes());
      } catch (const value_error&) {  // there is no place for this either: the caller's time runs out
      }
    }
  }

  int rank_, size_;
  std::shared_ptr<detail::rpc_calls> calls_;
  detail::rpc_functions functions_;
  std::jthread answers_, requests_;  // the last: they end first
};

}  // namespace weft
