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

/// The sum of the 32-byte stripes from `at`, which is advanced past them; the four lanes are independent.
std::uint64_t xxh_stripes(const char*& at, const char* end, std::uint64_t seed);

}  // namespace detail

/// XXH64 of `bytes`.
std::uint64_t xxh64(std::string_view bytes, std::uint64_t seed = 0);

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/base/impl/xxh64.ipp>
#endif
