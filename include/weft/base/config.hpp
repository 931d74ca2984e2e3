// SPDX-License-Identifier: MIT
// Version, instruction set and the few facts about the compiler that other headers ask for.
//
// Code that depends on the instruction set lives in an inline namespace named after it, so two
// units built with different -m flags fail to link instead of crashing on the older machine.
#pragma once

#include <cstdint>
#include <type_traits>

#define WEFT_VERSION_MAJOR 0
#define WEFT_VERSION_MINOR 1
#define WEFT_VERSION_PATCH 0

#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define WEFT_ISA avx512
#elif defined(__AVX2__) && defined(__FMA__)
#define WEFT_ISA avx2
#elif defined(__aarch64__)
#define WEFT_ISA neon
#else
#define WEFT_ISA baseline
#endif

#ifdef __FAST_MATH__
#error "weft needs IEEE infinities and NaN (masks, softmax): compile without -ffast-math"
#endif

namespace weft {

/// Counts elements; also an extent or an offset. Signed, so that differences are safe.
using index_t = std::int64_t;

/// Whether two addresses are those of one object or function. A constant, also of inline variables and
/// templates: g++ with -fsanitize=null, for which these might be null, leaves a == b undecided where they
/// differ.
constexpr bool same_object(const void* a, const void* b) {
  if (std::is_constant_evaluated()) return __builtin_constant_p(a == b) && a == b;
  return a == b;
}

inline namespace WEFT_ISA {

/// The instruction set that this unit was compiled for, as programs log it.
constexpr const char* compiled_isa() {
#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__) && defined(__AVX512VL__)
  return "avx512";
#elif defined(__AVX2__) && defined(__FMA__)
  return "avx2";
#elif defined(__aarch64__)
  return "neon";
#else
  return "baseline";
#endif
}

/// Bytes of one vector register of that instruction set.
inline constexpr int vector_bytes =
#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__) && defined(__AVX512VL__)
    64;
#elif defined(__AVX2__) && defined(__FMA__)
    32;
#else
    16;
#endif

/// Architectural vector registers, from which matmul derives its tile.
inline constexpr int vector_registers =
#if defined(__AVX512F__) || defined(__aarch64__)
    32;
#else
    16;
#endif

}  // namespace WEFT_ISA
}  // namespace weft
