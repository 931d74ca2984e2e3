// SPDX-License-Identifier: MIT
// Definitions of <weft/train/idx.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/train/idx.hpp>

namespace weft {
namespace detail {

WEFT_DEFINE shape idx_extents(std::string_view head, std::uint64_t size, const std::string& path) {
  const auto fail = [&](const std::string& why) -> void { throw io_error("weft: " + path + ": " + why); };
  const auto byte = [&](std::size_t i) {
    return static_cast<std::uint64_t>(static_cast<unsigned char>(head[i]));
  };
  if (head.size() >= 2 && byte(0) == 0x1f && byte(1) == 0x8b) fail("is compressed; gunzip it first");
  if (head.size() < 4 || byte(0) || byte(1)) fail("is not an IDX file");
  if (byte(2) != 8)
    fail("holds elements of type " + std::to_string(byte(2)) + "; only unsigned bytes (8) are supported");
  if (byte(3) < 1 || byte(3) > max_order) fail("has " + std::to_string(byte(3)) + " dims");
  const std::size_t header = 4 + 4 * static_cast<std::size_t>(byte(3));
  if (head.size() < header) fail("ends within its header");
  shape extents;
  std::uint64_t count = 1;
  index_t of_sample = 1;  // also computed for a file without samples
  for (std::size_t at = 4; at < header; at += 4) {
    const std::uint64_t extent = byte(at) << 24 | byte(at + 1) << 16 | byte(at + 2) << 8 | byte(at + 3);
    extents.append(static_cast<index_t>(extent));
    count = extent > 0 && count > size / extent ? size + 1 : count * extent;  // the product exceeds the file
    if (at > 4 && __builtin_mul_overflow(of_sample, static_cast<index_t>(extent), &of_sample))
      fail("has samples whose number of elements does not fit into 63 bits");
  }
  if (count + header != size)
    fail("has " + std::to_string(size) + " bytes, which do not match its extents " + to_string(extents));
  return extents;
}

}  // namespace detail

WEFT_DEFINE idx_array read_idx(const std::string& path) {
  const io::input_file file(path);
  std::string head(static_cast<std::size_t>(std::min<std::uint64_t>(file.size(), 4 + 4 * max_order)), '\0');
  file.read(0, head.data(), head.size());
  idx_array a{detail::idx_extents(head, file.size(), path), {}};
  a.bytes.resize(static_cast<std::size_t>(a.extents.size()));
  file.read(file.size() - a.bytes.size(), reinterpret_cast<char*>(a.bytes.data()), a.bytes.size());
  return a;
}

}  // namespace weft
