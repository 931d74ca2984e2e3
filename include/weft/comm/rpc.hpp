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
// a call takes about as long as four requests to the store.
#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include <weft/comm/store_protocol.hpp>

namespace weft {

namespace detail {

template <class T>
inline constexpr bool is_vector = false;
template <class T>
inline constexpr bool is_vector<std::vector<T>> = true;

template <class T>
void write_value(frame_writer& to, const T& value) {
  if constexpr (std::is_convertible_v<T, std::string>) {
    to.text(value);
  } else if constexpr (is_vector<T>) {
    to.number(static_cast<std::int64_t>(value.size()));
    for (const auto& v : value) write_value(to, v);
  } else {
    static_assert(std::is_trivially_copyable_v<T>, "weft: rpc: a type that cannot be copied as bytes");
    to.text(std::string(reinterpret_cast<const char*>(&value), sizeof(T)));
  }
}

template <class T>
T read_value(frame_reader& from) {
  if constexpr (std::is_same_v<T, std::string>) {
    return from.text();
  } else if constexpr (is_vector<T>) {
    T all;
    const std::int64_t n = from.number();
    for (std::int64_t i = 0; i < n && from.good(); ++i) all.push_back(read_value<typename T::value_type>(from));
    return all;
  } else {
    const std::string bytes = from.text();
    T value{};
    if (bytes.size() != sizeof(T)) throw comm_error("weft: rpc: an argument or a result is of another type");
    std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
}

/// The types that a function or lambda takes and gives.
template <class F>
struct signature : signature<decltype(&F::operator())> {};
template <class R, class... A>
struct signature<R (*)(A...)> {
  using result = R;
  using arguments = std::tuple<std::decay_t<A>...>;
};
template <class C, class R, class... A>
struct signature<R (C::*)(A...) const> : signature<R (*)(A...)> {};
template <class C, class R, class... A>
struct signature<R (C::*)(A...)> : signature<R (*)(A...)> {};

}  // namespace detail

class rpc_agent {
 public:
  using connect = std::function<std::shared_ptr<store>()>;
  using milliseconds = std::chrono::milliseconds;

  /// `to_store` gives ways to one store: the same one if it may be used by several threads that wait.
  rpc_agent(connect to_store, int rank, int size) : connect_(std::move(to_store)), rank_(rank), size_(size), incoming_(connect_()) {
    thread_ = std::thread([this] { answer_calls(); });
  }
  rpc_agent(const rpc_agent&) = delete;
  rpc_agent& operator=(const rpc_agent&) = delete;
  ~rpc_agent() {
    ending_ = true;
    thread_.join();
  }

  /// What other ranks may call. A function runs on the agent's thread, one call after the other.
  template <class F>
  void serve(const std::string& name, F f) {
    using s = detail::signature<F>;
    const std::lock_guard lock(mutex_);
    functions_[name] = [f](detail::frame_reader& in) mutable {
      typename s::arguments arguments = read_all<typename s::arguments>(in);
      if (!in.at_end()) throw comm_error("weft: rpc: a call has other arguments than the function takes");
      detail::frame_writer out;
      if constexpr (std::is_void_v<typename s::result>) std::apply(f, std::move(arguments));
      else detail::write_value(out, std::apply(f, std::move(arguments)));
      return out.take();
    };
  }

  /// Calls `function` on rank `to`. The future throws comm_error if it threw or is not served there,
  /// timeout_error if no answer came in time.
  template <class R, class... A>
  std::future<R> call(int to, const std::string& function, const A&... arguments) {
    return call_within<R>(store::default_limit, to, function, arguments...);
  }
  template <class R, class... A>
  std::future<R> call_within(milliseconds limit, int to, const std::string& function, const A&... arguments) {
    if (to < 0 || to >= size_) throw value_error("weft: rpc: there is no rank " + std::to_string(to));
    const std::string answer_at = "rpc/answer/" + std::to_string(rank_) + "/" + std::to_string(++calls_);
    detail::frame_writer w;
    w.text(answer_at).text(function);
    (detail::write_value(w, arguments), ...);
    return std::async(std::launch::async, [this, limit, to, function, answer_at, bytes = w.take()] {
      const std::shared_ptr<store> s = connect_();
      const std::string queue = "rpc/to/" + std::to_string(to) + "/";
      s->set(queue + std::to_string(s->add(queue + "count", 1)), bytes);
      std::string answer;
      try {
        answer = s->get(answer_at, limit);
      } catch (const timeout_error&) {
        throw timeout_error("weft: rpc: rank " + std::to_string(to) + " has not answered " + function + " within " +
                            std::to_string(limit.count()) + " ms");
      }
      s->delete_key(answer_at);
      detail::frame_reader r(answer);
      const bool good = r.byte() == 1;
      if (!good) throw comm_error("weft: rpc: " + function + " on rank " + std::to_string(to) + ": " + r.text());
      if constexpr (!std::is_void_v<R>) {
        R value = detail::read_value<R>(r);
        if (!r.at_end()) throw comm_error("weft: rpc: " + function + " on rank " + std::to_string(to) + " gives another type");
        return value;
      }
    });
  }

 private:
  template <class Tuple>
  static Tuple read_all(detail::frame_reader& in) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return Tuple{detail::read_value<std::tuple_element_t<I, Tuple>>(in)...};  // in order: braces
    }(std::make_index_sequence<std::tuple_size_v<Tuple>>{});
  }

  void answer_calls() {
    const std::string queue = "rpc/to/" + std::to_string(rank_) + "/";
    for (std::int64_t next = 1; !ending_;) {
      const std::string key = queue + std::to_string(next);
      std::string request;
      try {
        request = incoming_->get(key, milliseconds(50));
      } catch (const timeout_error&) {
        continue;
      } catch (const error&) {
        return;  // the store is gone, and with it the job
      }
      ++next;
      incoming_->delete_key(key);
      detail::frame_reader in(std::move(request));
      const std::string answer_at = in.text(), function = in.text();
      detail::frame_writer answer;
      try {
        answer.byte(1).raw(run(function, in));
      } catch (const std::exception& e) {
        answer = detail::frame_writer();
        answer.byte(0).text(e.what());
      }
      incoming_->set(answer_at, answer.take());
    }
  }
  std::string run(const std::string& function, detail::frame_reader& in) {
    std::function<std::string(detail::frame_reader&)> f;
    {
      const std::lock_guard lock(mutex_);
      const auto found = functions_.find(function);
      if (found == functions_.end()) throw comm_error("weft: rpc: is not served");
      f = found->second;
    }
    return f(in);
  }

  connect connect_;
  int rank_, size_;
  std::shared_ptr<store> incoming_;
  std::mutex mutex_;
  std::map<std::string, std::function<std::string(detail::frame_reader&)>> functions_;
  std::atomic<std::int64_t> calls_ = 0;
  std::atomic<bool> ending_ = false;
  std::thread thread_;
};

}  // namespace weft
