// SPDX-License-Identifier: MIT
// Counter-based random bits: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// 2011). A pure function of key and counter, so an element's bits depend neither on the device nor on how a
// tensor is divided among threads or ranks.
//
//   auto bits = philox({seed, stream}, element / 4)[element % 4];
#pragma once

#include <array>
#include <cstdint>

namespace weft {

/// The 64-bit key of a random sequence.
struct philox_key {
  std::uint32_t low = 0, high = 0;
};

/// The ten rounds on four 32-bit words, each in a 64-bit lane: W is a 64-bit integer or a vector of them.
template <class W>
constexpr void philox_rounds(W (&c)[4], philox_key key) {
  constexpr std::uint64_t low = 0xffffffff;
  for (int round = 0; round < 10; ++round) {
    const W p = c[0] * 0xD2511F53ull, q = c[2] * 0xCD9E8D57ull;
    c[0] = (q >> 32) ^ c[1] ^ key.low;
    c[1] = q & low;
    c[2] = (p >> 32) ^ c[3] ^ key.high;
    c[3] = p & low;
    key.low += 0x9E3779B9u;
    key.high += 0xBB67AE85u;
  }
}

/// Four random 32-bit words for the 64-bit `counter`.
constexpr std::array<std::uint32_t, 4> philox(philox_key key, std::uint64_t counter) {
  std::uint64_t c[4] = {counter & 0xffffffff, counter >> 32, 0, 0};
  philox_rounds(c, key);
  return {static_cast<std::uint32_t>(c[0]), static_cast<std::uint32_t>(c[1]),
          static_cast<std::uint32_t>(c[2]), static_cast<std::uint32_t>(c[3])};
}

/// The random word of element `i`.
constexpr std::uint32_t philox_word(philox_key key, std::uint64_t i) {
  return philox(key, i / 4)[i % 4];
}

/// Uniform in [0, 1) from the upper 24 bits: exact in f32, equal on every device.
constexpr float unit_interval(std::uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}

/// Mixes `value` into a 64-bit hash (the finaliser of splitmix64).
constexpr std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  std::uint64_t z = hash + 0x9E3779B97F4A7C15ull * (value + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

/// The two halves of a hash as a key.
constexpr philox_key key_of(std::uint64_t hash) {
  return {static_cast<std::uint32_t>(hash), static_cast<std::uint32_t>(hash >> 32)};
}

}  // namespace weft
