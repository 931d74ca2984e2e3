// SPDX-License-Identifier: MIT
// Definitions of <weft/base/sha256.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/base/sha256.hpp>

namespace weft {
namespace detail {

WEFT_DEFINE void sha256_block(std::array<std::uint32_t, 8>& state, const unsigned char* block) {
  std::uint32_t w[64];
  for (int i = 0; i < 16; ++i)
    w[i] = std::uint32_t{block[4 * i]} << 24 | std::uint32_t{block[4 * i + 1]} << 16 |
           std::uint32_t{block[4 * i + 2]} << 8 | block[4 * i + 3];
  for (int i = 16; i < 64; ++i) {
    const std::uint32_t a = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
    const std::uint32_t b = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + a + w[i - 7] + b;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (int i = 0; i < 64; ++i) {
    const std::uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                             ((e & f) ^ (~e & g)) + sha256_constants[i] + w[i];
    const std::uint32_t t2 =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const std::uint32_t added[] = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) state[i] += added[i];
}

}  // namespace detail

WEFT_DEFINE digest sha256(std::string_view text) {
  std::array<std::uint32_t, 8> state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::string padded(text);
  padded += '\x80';
  padded.append((120 - padded.size() % 64) % 64, '\0');
  const std::uint64_t bits = 8 * static_cast<std::uint64_t>(text.size());
  for (int i = 8; i-- > 0;) padded += static_cast<char>(bits >> 8 * i);
  for (std::size_t at = 0; at < padded.size(); at += 64)
    detail::sha256_block(state, reinterpret_cast<const unsigned char*>(padded.data()) + at);
  digest d;
  for (std::size_t i = 0; i < 32; ++i) d[i] = static_cast<std::uint8_t>(state[i / 4] >> (24 - 8 * (i % 4)));
  return d;
}

WEFT_DEFINE digest hmac_sha256(std::string_view key, std::string_view text) {
  std::string k(key);
  const auto as_text = [](const digest& d) { return std::string(d.begin(), d.end()); };
  if (k.size() > 64) k = as_text(sha256(k));
  k.resize(64, '\0');
  std::string inner = k, outer = k;
  for (char& c : inner) c = static_cast<char>(c ^ 0x36);
  for (char& c : outer) c = static_cast<char>(c ^ 0x5c);
  return sha256(outer + as_text(sha256(inner.append(text))));
}

WEFT_DEFINE bool equal_in_constant_time(const digest& a, const digest& b) {
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace weft
