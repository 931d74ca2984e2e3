// SPDX-License-Identifier: MIT
// Numbers in files and messages, whose first byte is the lowest on every machine.
//
//   static_assert(detail::little_endian({"\2\1", 2}) == 258);
#pragma once

#include <cstdint>
#include <string_view>

namespace weft::detail {

/// The number of at most 8 bytes.
constexpr std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t n = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) n = n << 8 | static_cast<unsigned char>(bytes[i]);
  return n;
}

}  // namespace weft::detail
