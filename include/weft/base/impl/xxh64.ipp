// SPDX-License-Identifier: MIT
// Definitions of <weft/base/xxh64.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/base/xxh64.hpp>

namespace weft {
namespace detail {

WEFT_DEFINE std::uint64_t xxh_stripes(const char*& at, const char* end, std::uint64_t seed) {
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

WEFT_DEFINE std::uint64_t xxh64(std::string_view bytes, std::uint64_t seed) {
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
