// SPDX-License-Identifier: MIT
// Remote calls without a network: their serialisation, and the table of functions that answers them.
//
//   detail::rpc_functions table;
//   table.serve("add", [](int a, int b) { return a + b; });
//   table.answer(detail::rpc_request(3, 7, "add", 2, 3), 4);       // to rank 3 of 4: call 7 returns 5
//
// Requests are untrusted: for arbitrary bytes, and whatever the function throws, the result is an answer or
// nullopt.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>

#include <weft/base/error.hpp>
#include <weft/comm/frames.hpp>

namespace weft::detail {

template <class T>
inline constexpr bool is_vector = false;
template <class T>
inline constexpr bool is_vector<std::vector<T>> = true;

/// The kind of a value, which is sent before it because its size alone does not determine its type.
enum class value_kind : std::uint8_t {
  none,
  text,
  vector,
  boolean,
  signed_integer,
  unsigned_integer,
  floating,
  bytes
};
template <class T>
inline constexpr value_kind kind_of = std::is_convertible_v<T, std::string> ? value_kind::text
                                      : is_vector<T>                        ? value_kind::vector
                                      : std::is_same_v<T, bool>             ? value_kind::boolean
                                      : std::is_floating_point_v<T>         ? value_kind::floating
                                      : !std::is_integral_v<T>              ? value_kind::bytes
                                      : std::is_signed_v<T>                 ? value_kind::signed_integer
                                                                            : value_kind::unsigned_integer;

/// Throws comm_error for a received value of kind `is` and `size` bytes when another kind or size is
/// expected.
[[noreturn, gnu::cold]] void refuse_value(value_kind is, std::size_t size, value_kind expected,
                                          std::size_t expected_size);

template <class T>
void write_value(frame_writer& to, const T& value) {
  to.byte(static_cast<std::uint8_t>(kind_of<T>));
  if constexpr (std::is_convertible_v<T, std::string>) {
    to.text(value);
  } else if constexpr (is_vector<T>) {
    to.number(static_cast<std::int64_t>(value.size()));
    for (const typename T::value_type& v : value) write_value(to, v);
  } else {
    static_assert(
        std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>,
        "weft: rpc: arguments and results must be strings, vectors or trivially copyable, and no pointers");
    to.text(std::string(reinterpret_cast<const char*>(&value), sizeof(T)));
  }
}

/// Reads a value of type T. Throws comm_error if the value that was written has another kind or size. Structs
/// and enumerations are copied as bytes, and only their size is compared, so every bit pattern must be valid.
template <class T>
T read_value(frame_reader& from) {
  const auto kind = static_cast<value_kind>(from.byte());
  if (kind != kind_of<T>) refuse_value(kind, from.left() < 4 ? 0 : from.length(), kind_of<T>, sizeof(T));
  if constexpr (std::is_same_v<T, std::string>) {
    return from.text();
  } else if constexpr (is_vector<T>) {
    T all;
    const std::int64_t n = from.number();
    if (n < 0) from.fail();
    for (std::int64_t i = 0; i < n && from.good(); ++i)
      all.push_back(read_value<typename T::value_type>(from));
    return all;
  } else {
    const std::string bytes = from.text();
    T value{};
    if (bytes.size() != sizeof(T)) refuse_value(kind, bytes.size(), kind, sizeof(T));
    if constexpr (std::is_same_v<T, bool>)
      if (static_cast<unsigned char>(bytes[0]) > 1)
        throw comm_error("weft: rpc: an argument or a result has another type: a bool is neither 0 nor 1");
    std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
}

/// Parameter and result types of a function or lambda.
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

/// Serialises call `number` of rank `caller`.
template <class... A>
std::string rpc_request(int caller, std::int64_t number, const std::string& function, const A&... arguments) {
  frame_writer w;
  w.number(caller).number(number).text(function);
  (write_value(w, arguments), ...);
  return w.take();
}

/// The result of a call, for rank `to`.
struct rpc_answer {
  int to = 0;
  std::int64_t number = 0;
  bool good = false;
  std::string text{};  // the result as bytes, or the error message

  std::string bytes() const { return frame_writer().number(number).byte(good).text(text).take(); }
};

class rpc_functions {
 public:
  template <class F>
  void serve(const std::string& name, F f) {
    using s = signature<F>;
    const auto called = [f](frame_reader& in) mutable {
      typename s::arguments arguments = read_all<typename s::arguments>(in);
      if (!in.at_end())
        throw comm_error("weft: rpc: the arguments of a call do not match the parameters of the function");
      frame_writer out;
      if constexpr (std::is_void_v<typename s::result>) std::apply(f, std::move(arguments));
      else write_value(out, std::apply(f, std::move(arguments)));
      return out.take();
    };
    const std::lock_guard lock(mutex_);
    functions_[name] = std::make_shared<function>(called);
  }

  /// Runs a request and returns its answer; nullopt if the caller is not one of `ranks` ranks.
  std::optional<rpc_answer> answer(std::string request, int ranks);

 private:
  using function = std::function<std::string(frame_reader&)>;

  template <class Tuple>
  static Tuple read_all(frame_reader& in) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return Tuple{read_value<std::tuple_element_t<I, Tuple>>(in)...};  // braces guarantee the order of reads
    }(std::make_index_sequence<std::tuple_size_v<Tuple>>{});
  }
  std::string run(const std::string& name, frame_reader& in);

  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<function>> functions_;
};

}  // namespace weft::detail

#ifndef WEFT_COMPILED
#include <weft/comm/impl/rpc_protocol.ipp>
#endif
