// SPDX-License-Identifier: MIT
// Vocabulary of the dialect for warpgroups, for CUDA devices of compute capability 9.0: products of tiles by
// 128 threads, which read their factors from shared memory (wgmma). Compiled for sm_90a.
//
// A tile is [row][feature] with a multiple of 64 features, laid out in the hardware's 128-byte swizzle: eight
// rows of 64 features are 1024 bytes, one row after the other, and the 16 bytes at place i of row r are
// stored at place i ^ r. The next 64 features follow, then the next eight rows. Tiles begin at multiples of
// 1024 bytes.
#pragma once

#include <string>

#include <weft/base/dtype.hpp>

namespace weft::gpu {

/// The compute capability of devices that have warpgroups.
inline constexpr const char* warpgroup_capability = "90";

/// The words for factors of a type, with N = 4, 8 or 16:
///
///   show_to_products();                 // before the barrier after which they read what this thread wrote
///   begin_products();
///   add_tile_products(sum, a, b);       // sum [64][8 N] += a [64][16] times the transpose of b [8 N][16]
///   add_register_products(sum, a, b);   // sum [64][8 N] += a [64][16], in registers, times b [16][8 N]
///   end_products();                     // they are computed
///
/// `sum`, an array [N][4], and `a` in registers are the warp's part, in fragments like those of
/// tensor_core_words.hpp. In shared memory, a and b are part_of_tile(address of the first row and feature,
/// bytes from eight rows to the next eight). An `a` in registers must be created anew for each product: if a
/// loop only reads it, ptxas 13.0 reuses its registers for other values after the first product.
[[gnu::cold]] std::string warpgroup_words(dtype type);

}  // namespace weft::gpu

#ifndef WEFT_COMPILED
#include <weft/gpu/impl/warpgroup_words.ipp>
#endif
