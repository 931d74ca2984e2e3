// SPDX-License-Identifier: MIT
// Mutual authentication of the two ends of a connection by the job's token, without sending it.
//
// Each side draws a nonce and sends HMAC-SHA256(token, role + both nonces); the role depends on the
// direction, which prevents reflection. The connection is neither encrypted nor authenticated after that.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include <weft/base/sha256.hpp>

namespace weft::detail {

inline constexpr std::size_t nonce_bytes = 32, proof_bytes = 32;

/// Random bytes from the operating system, without a file descriptor. Throws std::runtime_error if it
/// provides none.
inline std::string random_bytes(std::size_t n) {
  std::string s(n, '\0');
  if (::getentropy(s.data(), n) != 0) throw std::runtime_error("weft: the system provided no random numbers");
  return s;
}

/// The proof of the side `role`, for the nonces of both sides, `numbers`.
inline std::string proof(const std::string& token, const std::string& role, const std::string& numbers) {
  const digest d = hmac_sha256(token, role + numbers);
  return std::string(d.begin(), d.end());
}
/// Whether two proofs are equal, in constant time.
inline bool proves(const std::string& given, const std::string& expected) {
  if (given.size() != proof_bytes || expected.size() != proof_bytes) return false;
  digest a{}, b{};
  std::copy_n(given.begin(), proof_bytes, a.begin());
  std::copy_n(expected.begin(), proof_bytes, b.begin());
  return equal_in_constant_time(a, b);
}

/// Sent by a server instead of its proof: the token differs, or it accepts no more clients.
inline const std::string refused_token(proof_bytes, '\0');
inline const std::string refused_full = std::string(1, '\1') + std::string(proof_bytes - 1, '\0');

}  // namespace weft::detail
