// SPDX-License-Identifier: MIT
// Numbers in text that others wrote: names of devices, environment variables, files.
//
//   detail::parse_number<int>("12")    // 12
//   detail::parse_number<int>("12 ")   // none
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace weft::detail {

/// The number that all of `text` is, in decimal digits; none if it is anything else or too large for a T.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return number;
}

}  // namespace weft::detail
