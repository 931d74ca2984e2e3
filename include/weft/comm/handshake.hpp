// SPDX-License-Identifier: MIT
// How two sides of a connection prove to each other that they know the job's token, without sending it.
//
// Each side draws a nonce and sends HMAC-SHA256(token, role + both nonces); the role differs by direction, so
// neither side can send back what it was sent. What follows on the connection is neither encrypted nor
// signed.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include <weft/base/sha256.hpp>

namespace weft::detail {

inline constexpr std::size_t nonce_bytes = 32, proof_bytes = 32;

/// From the system's generator; needs no file descriptor.
inline std::string random_bytes(std::size_t n) {
  std::string s(n, '\0');
  if (::getentropy(s.data(), n) != 0) throw std::runtime_error("weft: the system gives no random numbers");
  return s;
}

/// `role` says which side proves it, `numbers` what the two sides have drawn.
inline std::string proof(const std::string& token, const std::string& role, const std::string& numbers) {
  const digest d = hmac_sha256(token, role + numbers);
  return std::string(d.begin(), d.end());
}
/// Compares in a time that does not depend on the bytes.
inline bool proves(const std::string& given, const std::string& expected) {
  if (given.size() != proof_bytes || expected.size() != proof_bytes) return false;
  digest a{}, b{};
  std::copy_n(given.begin(), proof_bytes, a.begin());
  std::copy_n(expected.begin(), proof_bytes, b.begin());
  return equal_in_constant_time(a, b);
}

/// What a server sends in the place of its proof: the token is another one, or it takes no more clients.
inline const std::string refused_token(proof_bytes, '\0');
inline const std::string refused_full = std::string(1, '\1') + std::string(proof_bytes - 1, '\0');

}  // namespace weft::detail
