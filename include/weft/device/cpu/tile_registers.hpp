// SPDX-License-Identifier: MIT
// AMX: registers of 16 rows of 64 bytes, and an instruction that multiplies two of them, holding bf16, and
// adds the product to a third, holding f32.
//
// Instructions are written as inline assembly, because the compilers' header of intrinsics takes longer to
// compile than all device headers of weft. Tests define WEFT_TILE_REGISTERS as the path of a header that
// emulates this one.
#pragma once

#include <weft/base/config.hpp>

#if defined(WEFT_TILE_REGISTERS)
#define WEFT_HAS_TILES 1
#include WEFT_TILE_REGISTERS
#elif defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__linux__)
#define WEFT_HAS_TILES 1
#include <sys/syscall.h>
#include <unistd.h>

namespace weft::cpu {
inline namespace WEFT_ISA {
namespace detail {

/// Whether this process may use the tile registers; Linux requires a request for that, which is made once.
inline bool tiles_permitted() {
  constexpr int request_state = 0x1023, tile_data = 18;
  static const bool permitted = syscall(SYS_arch_prctl, request_state, tile_data) == 0;
  return permitted;
}

/// Configures this thread's tile registers as 16 rows of 64 bytes, while it exists.
class tile_registers {
 public:
  tile_registers() {
    struct alignas(64) {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } const configuration;
    asm volatile("ldtilecfg %0" ::"m"(configuration));
  }
  tile_registers(const tile_registers&) = delete;
  tile_registers& operator=(const tile_registers&) = delete;
  ~tile_registers() { asm volatile("tilerelease"); }
};

/// Loads register Tile from 16 rows of memory, `row_bytes` apart.
template <int Tile>
WEFT_INLINE void load_tile(const void* from, index_t row_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(row_bytes), "i"(Tile) : "memory");
}
template <int Tile>
WEFT_INLINE void store_tile(void* to, index_t row_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(row_bytes), "i"(Tile) : "memory");
}
template <int Tile>
WEFT_INLINE void clear_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(Tile));
}
/// Adds the product of A, 16 rows of 16 pairs of bf16, and B, 16 pairs of rows of 16 columns, to the f32 in
/// Sum.
template <int Sum, int A, int B>
WEFT_INLINE void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sum), "i"(A), "i"(B));
}

}  // namespace detail
}  // namespace WEFT_ISA
}  // namespace weft::cpu
#else
#define WEFT_HAS_TILES 0
#endif
