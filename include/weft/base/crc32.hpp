// SPDX-License-Identifier: MIT
// CRC-32 of zip files, gzip and Ethernet (ISO 3309).
//
//   crc32("123456789") == 0xcbf43926
#pragma once

#include <cstdint>
#include <string_view>

namespace weft {

/// CRC-32 of `bytes`, following bytes whose CRC-32 is `before`.
std::uint32_t crc32(std::string_view bytes, std::uint32_t before = 0);

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/base/impl/crc32.ipp>
#endif
