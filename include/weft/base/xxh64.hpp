// SPDX-License-Identifier: MIT
// XXH64 (Collet, "xxHash fast digest algorithm", version 0.1.1): a 64-bit checksum about as fast as memory.
//
//   xxh64("abc") == 0x44bc2cf5ad770999
//
// Detects corruption by disks, networks and programs. Not cryptographic: collisions can be constructed.
// `xxhsum -H64` computes the same.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace weft {

namespace detail {

inline constexpr std::uint64_t xxh_primes[5] = {0x9e3779b185ebca87, 0xc2b2ae3d27d4eb4f, 0x165667b19e3779f9,
                                                0x85ebca77c2b2ae63, 0x27d4eb2f165667c5};

template <class Word>
std::uint64_t xxh_word(const char* at) {
  static_assert(std::endian::native == std::endian::little);
  Word word;
  std::memcpy(&word, at, sizeof word);
  return word;
}
inline std::uint64_t xxh_round(std::uint64_t sum, std::uint64_t word) {
  return std::rotl(sum + word * xxh_primes[1], 31) * xxh_primes[0];
}

/// The sum of the 32-byte stripes from `at`, which is advanced past them; four lanes are independent.
inline std::uint64_t xxh_stripes(const char*& at, const char* end, std::uint64_t seed) {
  std::uint64_t a = seed + xxh_primes[0] + xxh_primes[1], b = seed + xxh_primes[1], c = seed,
                d = seed - xxh_primes[0];
  for (; end - at >= 32; at += 32) {
    a = xxh_round(a, xxh_word<std::uint64_t>(at));
    b = xxh_round(b, xxh_word<std::uint64_t>(at + 8));
    c = xxh_round(c, xxh_word<std::uint64_t>(at + 16));
    d = xxh_round(d, xxh_word<std::uint64_t>(at + 24));
  }
  std::uint64_t sum = std::rotl(a, 1) + std::rotl(b, 7) + std::rotl(c, 12) + std::rotl(d, 18);
  for (const std::uint64_t lane : {a, b, c, d})
    sum = (sum ^ xxh_round(0, lane)) * xxh_primes[0] + xxh_primes[3];
  return sum;
}

}  // namespace detail

/// XXH64 of `bytes`.
inline std::uint64_t xxh64(std::string_view bytes, std::uint64_t seed = 0) {
  using namespace detail;
  const char *at = bytes.data(), *const end = at + bytes.size();
  std::uint64_t sum = bytes.size() >= 32 ? xxh_stripes(at, end, seed) : seed + xxh_primes[4];
  sum += bytes.size();
  for (; end - at >= 8; at += 8)
    sum = std::rotl(sum ^ xxh_round(0, xxh_word<std::uint64_t>(at)), 27) * xxh_primes[0] + xxh_primes[3];
  if (end - at >= 4) {
    sum = std::rotl(sum ^ xxh_word<std::uint32_t>(at) * xxh_primes[0], 23) * xxh_primes[1] + xxh_primes[2];
    at += 4;
  }
  for (; at != end; ++at)
    sum = std::rotl(sum ^ static_cast<unsigned char>(*at) * xxh_primes[4], 11) * xxh_primes[0];
  sum = (sum ^ sum >> 33) * xxh_primes[1];
  sum = (sum ^ sum >> 29) * xxh_primes[2];
  return sum ^ sum >> 32;
}

}  // namespace weft
