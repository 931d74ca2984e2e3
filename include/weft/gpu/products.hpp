// SPDX-License-Identifier: MIT
// Matrix products on devices without a library for them, computed in tiles in the memory of a group.
//
// A group computes a tile of the result. Steps of 16 columns of a and rows of b are staged in the memory that
// the group shares, so that an element is read from device memory once for each tile that needs it: 2 / TILE
// reads per multiplication. Every element of the result is summed in the order of k, whatever the tiles.
#pragma once

#include <string>

#include <weft/device/native.hpp>
#include <weft/gpu/native_text.hpp>

namespace weft::gpu {

/// The tiles of a product: `tile` x `tile` elements, of which an item computes `item` x `item`.
struct product_tiles {
  static constexpr int depth = 16;
  int tile = 32, item = 4;

  /// The largest tiles that fit the device and still give its groups enough tiles. Tiles above 32 are for
  /// devices where a group's memory is faster than that of the device.
  [[gnu::cold]] static product_tiles choose(index_t m, index_t n, index_t batch, dtype type,
                                            const group_limits& limits);
  int threads() const { return tile / item * (tile / item); }
  index_t bytes(dtype type) const;
  index_t count(index_t m, index_t n) const { return ((m + tile - 1) / tile) * ((n + tile - 1) / tile); }
  /// The kernel for operands with the type of `a` and a result like `c`.
  [[gnu::cold]] std::string source(const strided& a, const strided& c) const;
};

/// c = a b. Operands are stored as OPERAND, the result as RESULT; T is the type of sums. Item (x, y) of a
/// group has every SIDEth column from x on and every SIDEth row from y on, so that adjacent items read and
/// write adjacent elements.
inline constexpr const char* product_text = R"(
typedef struct {
  long at[3], m, n, k, batch, a0, a1, b0, b1, c0, c1, batches[4], batch_a[4], batch_b[4], batch_c[4];
} PARAMS;
#define SIDE (TILE / ITEM)
KERNEL weft_kernel(GLOBAL char* p0, GLOBAL char* p1, GLOBAL char* p2, PARAMS P) {
  SHARED_MEMORY T left[DEPTH][TILE + 1];
  SHARED_MEMORY T right[DEPTH][TILE + 1];
  long tiles_n = (P.n + TILE - 1) / TILE, tiles_m = (P.m + TILE - 1) / TILE;
  int me = (int)LOCAL_ID, x = me % SIDE, y = me / SIDE;
  for (long tile = GROUP_ID; tile < P.batch * tiles_m * tiles_n; tile += GROUPS) {
    long batch = tile / (tiles_m * tiles_n), m0 = tile / tiles_n % tiles_m * TILE, n0 = tile % tiles_n * TILE;
    GLOBAL const OPERAND* a = (GLOBAL const OPERAND*)(p0 + P.at[0]) +
                              element_offset(batch, 4, P.batches, P.batch_a) + m0 * P.a0;
    GLOBAL const OPERAND* b = (GLOBAL const OPERAND*)(p1 + P.at[1]) +
                              element_offset(batch, 4, P.batches, P.batch_b) + n0 * P.b1;
    GLOBAL RESULT* c = (GLOBAL RESULT*)(p2 + P.at[2]) + element_offset(batch, 4, P.batches, P.batch_c) +
                       m0 * P.c0 + n0 * P.c1;
    int rows = P.m - m0 < TILE ? (int)(P.m - m0) : TILE, columns = P.n - n0 < TILE ? (int)(P.n - n0) : TILE;
    T sum[ITEM][ITEM];
    _Pragma("unroll") for (int i = 0; i < ITEM; ++i)
      _Pragma("unroll") for (int j = 0; j < ITEM; ++j) sum[i][j] = 0;
    for (long k0 = 0; k0 < P.k; k0 += DEPTH) {
      int deep = P.k - k0 < DEPTH ? (int)(P.k - k0) : DEPTH;
      for (int e = me; e < TILE * DEPTH; e += GROUP_SIZE) {
        int i = P.a1 == 1 ? e / DEPTH : e % TILE, ka = P.a1 == 1 ? e % DEPTH : e / TILE;
        int j = P.b1 == 1 ? e % TILE : e / DEPTH, kb = P.b1 == 1 ? e / TILE : e % DEPTH;
        left[ka][i] = i < rows && ka < deep ? LOADED(a[i * P.a0 + ka * P.a1]) : (T)0;
        right[kb][j] = j < columns && kb < deep ? LOADED(b[kb * P.b0 + j * P.b1]) : (T)0;
      }
      BARRIER;
      for (int k = 0; k < DEPTH; ++k) {
        T of_a[ITEM], of_b[ITEM];
        _Pragma("unroll") for (int i = 0; i < ITEM; ++i) of_a[i] = left[k][y + SIDE * i];
        _Pragma("unroll") for (int j = 0; j < ITEM; ++j) of_b[j] = right[k][x + SIDE * j];
        _Pragma("unroll") for (int i = 0; i < ITEM; ++i)
          _Pragma("unroll") for (int j = 0; j < ITEM; ++j) sum[i][j] += of_a[i] * of_b[j];
      }
      BARRIER;
      a += DEPTH * P.a1;
      b += DEPTH * P.b0;
    }
    _Pragma("unroll") for (int i = 0; i < ITEM; ++i)
      _Pragma("unroll") for (int j = 0; j < ITEM; ++j)
        if (y + SIDE * i < rows && x + SIDE * j < columns)
          STORE(c[(y + SIDE * i) * P.c0 + (x + SIDE * j) * P.c1], sum[i][j]);
  }
}
)";

}  // namespace weft::gpu

#ifndef WEFT_COMPILED
#include <weft/gpu/impl/products.ipp>
#endif
