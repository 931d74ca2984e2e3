// SPDX-License-Identifier: MIT
// Version, instruction set and properties of the compiler.
//
// Code that depends on the instruction set is in an inline namespace named after it, so that two units built
// with different -m flags fail to link instead of crashing on the older machine.
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

/// Number of elements, an extent or an offset. Signed, so that differences are safe.
using index_t = std::int64_t;

/// Whether two addresses are those of the same object or function, as a constant also for inline variables
/// and templates: with -fsanitize=null g++ treats these as possibly null and does not evaluate a == b where
/// they differ.
constexpr bool same_object(const void* a, const void* b) {
  if (std::is_constant_evaluated()) return __builtin_constant_p(a == b) && a == b;
  return a == b;
}

inline namespace WEFT_ISA {

/// The instruction set for which this unit was compiled.
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

/// Bytes of one vector register.
inline constexpr int vector_bytes =
#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__) && defined(__AVX512VL__)
    64;
#elif defined(__AVX2__) && defined(__FMA__)
    32;
#else
    16;
#endif

/// Number of architectural vector registers, which determines the tile of matrix products.
inline constexpr int vector_registers =
#if defined(__AVX512F__) || defined(__aarch64__)
    32;
#else
    16;
#endif

}  // namespace WEFT_ISA
}  // namespace weft
