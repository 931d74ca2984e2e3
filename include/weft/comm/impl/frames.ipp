// SPDX-License-Identifier: MIT
// Definitions of <weft/comm/frames.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/base/little_endian.hpp>
#include <weft/comm/frames.hpp>

namespace weft {
namespace detail {

WEFT_DEFINE frame_writer& frame_writer::number(std::int64_t n) {
  for (int i = 0; i < 8; ++i) bytes_ += static_cast<char>(static_cast<std::uint64_t>(n) >> 8 * i);
  return *this;
}

WEFT_DEFINE std::string frame_reader::text() {
  const std::size_t n = length();
  if (n > left()) return fail(), "";
  at_ += n;
  return bytes_.substr(at_ - n, n);
}

WEFT_DEFINE std::vector<std::string> frame_reader::texts(std::size_t most) {
  const std::size_t n = length();
  if (n > most || n > left() / 4) return fail(), std::vector<std::string>{};
  std::vector<std::string> all;
  for (std::size_t i = 0; i < n && good_; ++i) all.push_back(text());
  return all;
}

WEFT_DEFINE std::uint64_t frame_reader::unsigned_of(std::size_t size) {
  if (!good_ || size > left()) return fail(), 0;
  at_ += size;
  return little_endian(std::string_view(bytes_).substr(at_ - size, size));
}

}  // namespace detail
}  // namespace weft
