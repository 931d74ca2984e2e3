// SPDX-License-Identifier: MIT
// Emulates the tile registers of device/cpu/tile_registers.hpp in memory, so that matrix products on them are
// tested on any machine. An instruction without a configuration, which would end the process, throws.
#pragma once

#include <bit>
#include <cstring>
#include <stdexcept>

namespace weft::cpu {
inline namespace WEFT_ISA {
namespace detail {

inline bool tiles_permitted() { return true; }

struct emulated_tile {
  std::uint32_t at[16][16];
};
inline thread_local emulated_tile emulated_tiles[8];
inline thread_local bool tiles_are_configured = false;

class tile_registers {
 public:
  tile_registers() {
    if (tiles_are_configured) throw std::logic_error("tile registers are configured twice");
    tiles_are_configured = true;
    std::memset(emulated_tiles, 0, sizeof emulated_tiles);
  }
  tile_registers(const tile_registers&) = delete;
  tile_registers& operator=(const tile_registers&) = delete;
  ~tile_registers() { tiles_are_configured = false; }
};

template <int Tile>
emulated_tile& tile_at() {
  static_assert(Tile < 8);
  if (!tiles_are_configured) throw std::logic_error("tile registers are not configured");
  return emulated_tiles[Tile];
}
template <int Tile>
void load_tile(const void* from, index_t row_bytes) {
  for (int i = 0; i < 16; ++i)
    std::memcpy(tile_at<Tile>().at[i], static_cast<const char*>(from) + i * row_bytes, 64);
}
template <int Tile>
void store_tile(void* to, index_t row_bytes) {
  for (int i = 0; i < 16; ++i)
    std::memcpy(static_cast<char*>(to) + i * row_bytes, tile_at<Tile>().at[i], 64);
}
template <int Tile>
void clear_tile() {
  tile_at<Tile>() = {};
}
template <int Sum, int A, int B>
void multiply_tiles() {
  const auto lower = [](std::uint32_t pair) { return std::bit_cast<float>(pair << 16); };
  const auto upper = [](std::uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000u); };
  const emulated_tile &a = tile_at<A>(), &b = tile_at<B>();
  for (int i = 0; i < 16; ++i)
    for (int k = 0; k < 16; ++k)
      for (int j = 0; j < 16; ++j) {
        std::uint32_t& sum = tile_at<Sum>().at[i][j];
        sum = std::bit_cast<std::uint32_t>(std::bit_cast<float>(sum) + lower(a.at[i][k]) * lower(b.at[k][j]) +
                                           upper(a.at[i][k]) * upper(b.at[k][j]));
      }
}

}  // namespace detail
}  // namespace WEFT_ISA
}  // namespace weft::cpu
