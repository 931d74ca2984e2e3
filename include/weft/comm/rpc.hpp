// SPDX-License-Identifier: MIT
// Remote procedure calls between ranks; arguments and results are transferred through a store.
//
//   rpc_agent agent([&] { return std::make_shared<tcp_store>(address, port, token); }, rank, size);
//   agent.serve("add", [](int a, int b) { return a + b; });
//   std::future<int> sum = agent.call<int>(1, "add", 2, 3);
//   sum.get();                                   // throws comm_error with the message of what was thrown
//
// Arguments and results are numbers, trivially copyable structs, strings, and vectors of these; arguments
// must have exactly the types of the function's parameters. For control and small data: a call takes about as
// long as four requests to the store. An idle agent sends nothing.
#pragma once

#include <condition_variable>
#include <future>
#include <map>
#include <thread>

#include <weft/comm/rpc_protocol.hpp>
#include <weft/comm/store.hpp>

namespace weft {

namespace detail {

/// The calls of an agent that have not been answered.
class rpc_calls {
 public:
  explicit rpc_calls(std::shared_ptr<store> s);

  std::int64_t begin() {
    const std::lock_guard lock(mutex_);
    answers_[++last_];
    return last_;
  }
  /// Sends call `number` of `function` to rank `to` and waits for the result, as bytes.
  std::string finish(std::int64_t number, store::milliseconds limit, int to, const std::string& function,
                     const std::string& request);
  /// Delivers an answer to the call that waits for it, if it still does.
  void answered(std::string bytes);
  /// Fails all waiting calls, with this reason.
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
  std::int64_t last_;  // starts at random: answers to an earlier agent of this rank may still arrive
  std::string over_;  // why no more answers will arrive
};

}  // namespace detail

/// Serves functions to other ranks and calls theirs. One per rank.
class rpc_agent {
 public:
  using connect = std::function<std::shared_ptr<store>()>;
  using milliseconds = std::chrono::milliseconds;

  /// `to_store` returns connections to one store, and is called three times; it may return the same object if
  /// that supports several waiting threads.
  rpc_agent(const connect& to_store, int rank, int size);
  rpc_agent(const rpc_agent&) = delete;
  rpc_agent& operator=(const rpc_agent&) = delete;
  /// Waits for a running function to return; calls without an answer fail.
  ~rpc_agent() { calls_->end("the agent that called has ended"); }

  /// Makes `f` callable by other ranks under `name`. Functions run on the agent's thread, one at a time.
  template <class F>
  void serve(const std::string& name, F f) {
    functions_.serve(name, std::move(f));
  }

  /// Calls `function` on rank `to`. The future throws comm_error if the function threw, is not served there,
  /// or returns more than the store accepts; timeout_error if no answer came in time, in which case the
  /// function may still run; value_error if the store refuses the call. Throws value_error if rank `to` does
  /// not exist.
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
                          if (!r.at_end()) throw comm_error("weft: rpc: " + who + " returns another type");
                          return value;
                        }
                      });
  }

 private:
  static constexpr std::chrono::hours long_enough{24};  // after that it waits again

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
  } catch (const std::exception& e) {  // the store is gone, and the job with it
    calls_->end(e.what());
  }
  void send(detail::rpc_answer& a);

  int rank_, size_;
  std::shared_ptr<detail::rpc_calls> calls_;
  detail::rpc_functions functions_;
  std::jthread answers_, requests_;  // last, so that they end first
};

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/comm/impl/rpc.ipp>
#endif
