// SPDX-License-Identifier: MIT
// The exceptions of weft. Invalid user input throws; it never aborts the process.
//
// Every message names the op, shapes, file or module path concerned.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>

#include <weft/base/number.hpp>

namespace weft {

/// Base of all exceptions of weft.
struct error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Extents that do not match, found at run time.
struct shape_error : error {
  using error::error;
};

/// An invalid value, or a tensor that cannot be used: changed in place, out of range, without a gradient.
struct value_error : error {
  using error::error;
};

/// A loss that is infinite or NaN.
struct non_finite_error : value_error {
  explicit non_finite_error(std::int64_t number)
      : value_error("weft: step: the loss of micro-batch " + std::to_string(number) + " is not finite"),
        micro_batch(number) {}
  std::int64_t micro_batch;  // the first one, numbered among those of all ranks
};

/// A device that is missing, failed, or has no kernel for an op.
struct device_error : error {
  using error::error;
};

/// Bytes at the time when a device had no memory left; 0 if not known.
struct memory_shortage {
  std::size_t requested = 0;
  std::size_t in_use = 0;
  std::size_t reserved = 0;  // by the allocator
  std::size_t free = 0;      // on the device
  /// What the allocator could certainly hold.
  std::size_t attainable() const { return reserved + free; }
};

/// A device with too little memory. The allocator releases cached blocks and retries only on this error.
struct out_of_memory_error : device_error {
  using device_error::device_error;
  out_of_memory_error(const std::string& message, const memory_shortage& s)
      : device_error(message), shortage(s) {}
  memory_shortage shortage;
};

/// A file that cannot be read or written, or has invalid content.
struct io_error : error {
  using error::error;
};

/// Ranks that disagree, or a rank that has failed. Names the operation and the rank.
struct comm_error : error {
  using error::error;
};

/// A rank that did not respond in time.
struct timeout_error : comm_error {
  using comm_error::comm_error;
};

/// Invalid arguments of a call or program; examples exit with code 2.
struct usage_error : error {
  using error::error;
};

/// A part of a message: text, a number, or a value for which `to_string(value)` is a std::string, such as a
/// shape. Refers to the object it is made from.
class message_part {
 public:
  message_part(const char* text) : append_(append_text), text_(text) {}
  message_part(const std::string& text) : append_(append_value<std::string>), value_(&text) {}
  message_part(const std::string_view& text) : append_(append_value<std::string_view>), value_(&text) {}
  message_part(std::signed_integral auto number) : append_(append_signed), signed_(number) {}
  message_part(std::unsigned_integral auto number) : append_(append_unsigned), unsigned_(number) {}
  message_part(std::floating_point auto number)
      : append_(append_real<decltype(number)>), real_(static_cast<double>(number)) {}
  template <class T>
    requires requires(const T& value) { to_string(value); }
  message_part(const T& value) : append_(append_value<T>), value_(&value) {}

  void append_to(std::string& message) const { append_(message, *this); }

 private:
  using function = void(std::string&, const message_part&);
  [[gnu::cold]] static void append_text(std::string& to, const message_part& p) { to += p.text_; }
  [[gnu::cold]] static void append_unsigned(std::string& to, const message_part& p) {
    to += std::to_string(p.unsigned_);
  }
  [[gnu::cold]] static void append_signed(std::string& to, const message_part& p) {
    to += std::to_string(p.signed_);
  }
  template <class T>
  [[gnu::cold]] static void append_real(std::string& to, const message_part& p) {
    constexpr int most = std::numeric_limits<T>::max_digits10;
    std::string text;
    for (int digits = 6; digits <= most; ++digits) {  // the fewest that suffice
      text = detail::number_text(p.real_, digits, std::chars_format::general);
      if (static_cast<T>(detail::parse_number<double>(text).value_or(0)) == static_cast<T>(p.real_)) break;
    }
    to += text;
  }
  template <class T>
  [[gnu::cold]] static void append_value(std::string& to, const message_part& p) {
    const T& value = *static_cast<const T*>(p.value_);
    if constexpr (requires { to += value; }) to += value;
    else to += to_string(value);
  }

  function* append_;
  union {
    const char* text_;
    const void* value_;
    long long signed_;
    unsigned long long unsigned_;
    double real_;
  };
};

namespace detail {
/// The parts as one text. One function for all messages, because each `+` between strings would generate code
/// where it is used.
[[gnu::cold, gnu::noinline]] inline std::string joined(std::initializer_list<message_part> parts) {
  std::string message;
  for (const message_part& p : parts) p.append_to(message);
  return message;
}

/// The message of an exception.
inline std::string reason_of(const std::exception_ptr& what) {
  try {
    std::rethrow_exception(what);
  } catch (const std::exception& e) { return e.what(); } catch (...) {
    return "an exception of an unknown type";
  }
}
}  // namespace detail

/// Throws an Error with the parts as its message.
///   refuse<shape_error>({"weft: slice: dim ", dim, " of ", extents});
template <class Error>
[[noreturn, gnu::cold, gnu::noinline]] void refuse(std::initializer_list<message_part> parts) {
  throw Error(detail::joined(parts));
}

}  // namespace weft
