// SPDX-License-Identifier: MIT
// Definitions of <weft/base/crc32.hpp>.
#pragma once

#include <array>
#include <bit>
#include <cstring>

#include <weft/base/config.hpp>
#include <weft/base/crc32.hpp>

namespace weft {
namespace detail {

/// tables[k][b]: the contribution of byte `b` when `k` bytes follow it.
using crc_tables = std::array<std::array<std::uint32_t, 256>, 8>;
constexpr crc_tables make_crc_tables() {
  crc_tables tables{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t sum = b;
    for (int bit = 0; bit < 8; ++bit) sum = sum >> 1 ^ (sum & 1 ? 0xedb88320u : 0u);
    tables[0][b] = sum;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t b = 0; b < 256; ++b)
      tables[k][b] = tables[k - 1][b] >> 8 ^ tables[0][tables[k - 1][b] & 255];
  return tables;
}
inline constexpr crc_tables tables_of_crc = make_crc_tables();

}  // namespace detail

WEFT_DEFINE std::uint32_t crc32(std::string_view bytes, std::uint32_t before) {
  static_assert(std::endian::native == std::endian::little);
  const detail::crc_tables& tables = detail::tables_of_crc;
  std::uint32_t sum = ~before;
  for (; bytes.size() >= 8; bytes.remove_prefix(8)) {  // eight at a time
    std::uint64_t word;
    std::memcpy(&word, bytes.data(), 8);
    word ^= sum;
    sum = 0;
    for (std::size_t k = 0; k < 8; ++k) sum ^= tables[7 - k][word >> 8 * k & 255];
  }
  for (const char c : bytes) sum = sum >> 8 ^ tables[0][(sum ^ static_cast<unsigned char>(c)) & 255];
  return ~sum;
}

}  // namespace weft
