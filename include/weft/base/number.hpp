// SPDX-License-Identifier: MIT
// Numbers in text: reading them from external text, such as names of devices, environment variables and
// files, and writing them. Neither depends on the locale.
//
//   detail::parse_number<int>("12")    // 12
//   detail::parse_number<int>("12 ")   // none
//   detail::fixed(1.25, 1)             // "1.2"
#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace weft::detail {

/// The number that `text` as a whole is, in decimal digits; none if it is anything else or too large for a T.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return number;
}

/// `number` as printf writes it in the locale "C": by %.*f if `how` is fixed, by %.*g if it is general.
inline std::string number_text(double number, int digits, std::chars_format how) {
  char text[512];  // the largest double has 309 digits before the point
  const auto [end, error] = std::to_chars(text, text + sizeof text, number, how, digits);
  return error == std::errc() ? std::string(text, end) : std::string();
}
/// With `digits` digits after the decimal point.
inline std::string fixed(double number, int digits) {
  return number_text(number, digits, std::chars_format::fixed);
}
/// With at most 6 digits, and an exponent if that is shorter.
inline std::string general(double number) { return number_text(number, 6, std::chars_format::general); }

}  // namespace weft::detail
