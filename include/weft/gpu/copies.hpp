// SPDX-License-Identifier: MIT
// Copies between strided tensors: their texts, and how dims are merged and elements combined into larger
// units.
#pragma once

#include <string>

#include <weft/device/native.hpp>

namespace weft::gpu {

/// A copy of units of up to 16 bytes. A unit is one element, or several that are adjacent in both tensors, if
/// extents, strides and addresses are multiples of that number. Dims that both tensors can traverse as one
/// are merged.
struct copy_form {
  index_t unit = 0;  // bytes
  int order = 0;
  bool narrow = false;  // positions have 32 bits
  index_t extent[max_order]{}, from[max_order]{}, to[max_order]{};

  /// `most`: maximum size of a unit in bytes.
  [[gnu::cold]] copy_form(const strided& from, const strided& to, index_t most = 16);
  index_t size() const {
    index_t n = 1;
    for (int d = 0; d < order; ++d) n *= extent[d];
    return n;
  }
};

/// What the texts below depend on.
struct copy_text_form {
  index_t unit = 16;
  int order = 1;
  bool narrow = true;

  /// Extends the form so that it serves this copy, too.
  void add(const copy_form& copy);
  [[gnu::cold]] std::string key() const;
  [[gnu::cold]] std::string source(const char* text) const;
};

/// Copies the units of one strided tensor to another. The first dim gets what remains of a position.
inline constexpr const char* copy_text = R"(
typedef struct { long at[2], size, extent[ORDER], from[ORDER], to[ORDER]; } PARAMS;
KERNEL weft_kernel(GLOBAL char* p0, GLOBAL char* p1, PARAMS P) {
  GLOBAL const T* from = (GLOBAL const T*)(p0 + P.at[0]);
  GLOBAL T* to = (GLOBAL T*)(p1 + P.at[1]);
  for (POSITION e = GLOBAL_ID; e < (POSITION)P.size; e += GLOBAL_SIZE) {
    OFFSETS(e, P)
    to[there] = from[here];
  }
}
)";

/// The same for up to `most_copies` pairs, on devices whose kernels can read addresses from memory. `begin`
/// is the number of units in the preceding pairs.
inline constexpr index_t most_copies = 20;
inline constexpr const char* copies_text = R"(
typedef struct { long begin, from_address, to_address, extent[ORDER], from[ORDER], to[ORDER]; } PAIR;
typedef struct { long size, pairs; PAIR pair[MOST_COPIES]; } PARAMS;
KERNEL weft_kernel(CONSTANT_PARAMS P) {
  for (POSITION e = GLOBAL_ID; e < (POSITION)P.size; e += GLOBAL_SIZE) {
    int k = 0;
    while (k + 1 < P.pairs && (POSITION)P.pair[k + 1].begin <= e) ++k;
    OFFSETS(e - (POSITION)P.pair[k].begin, P.pair[k])
    ((T*)P.pair[k].to_address)[there] = ((const T*)P.pair[k].from_address)[here];
  }
}
)";

/// The common beginning of both texts.
inline constexpr const char* copy_words = R"(
#define OFFSETS(position, by)                                                \
  POSITION rest = position;                                                  \
  long here = 0, there = 0;                                                  \
  _Pragma("unroll") for (int d = ORDER - 1; d >= 0; --d) {                   \
    POSITION i = d > 0 ? rest % (POSITION)(by).extent[d] : rest;             \
    if (d > 0) rest /= (POSITION)(by).extent[d];                             \
    here += (long)i * (by).from[d];                                          \
    there += (long)i * (by).to[d];                                           \
  }
)";

}  // namespace weft::gpu

#ifndef WEFT_COMPILED
#include <weft/gpu/impl/copies.ipp>
#endif
