// SPDX-License-Identifier: MIT
// Version, instruction set and properties of the compiler.
//
// Code that depends on the instruction set is in an inline namespace named after it, so that two units built
// with different -m flags fail to link instead of crashing on the older machine. Tests that emulate registers
// (device/cpu/tile_registers.hpp) have a namespace of their own.
#pragma once

#include <cstdint>
#include <type_traits>

#define WEFT_VERSION_MAJOR 0
#define WEFT_VERSION_MINOR 1
#define WEFT_VERSION_PATCH 0

#if defined(WEFT_TILE_REGISTERS)
#define WEFT_ISA emulated_tiles
#elif defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
#define WEFT_ISA avx512_amx
#elif defined(__AVX512BF16__)
#define WEFT_ISA avx512_bf16
#else
#define WEFT_ISA avx512
#endif
#elif defined(__AVX2__) && defined(__FMA__)
#define WEFT_ISA avx2
#elif defined(__aarch64__)
#define WEFT_ISA neon
#else
#define WEFT_ISA baseline
#endif

#if __cplusplus < 202002L
#error "weft needs C++20: compile with -std=c++20, by g++ 12 or clang 16 or later"
#endif
#ifndef __cpp_exceptions
#error "weft reports errors by exceptions: compile without -fno-exceptions"
#endif
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error \
    "weft needs IEEE infinities and NaN (masks, softmax): compile without -ffast-math and -ffinite-math-only"
#endif
#if defined(min) || defined(max)
#error "min or max is a macro, but the standard library and weft have functions of that name: #undef it first"
#endif

#ifndef WEFT_WITH_TBB
#define WEFT_WITH_TBB 0
#endif
#ifndef WEFT_WITH_OPENCL
#define WEFT_WITH_OPENCL 0
#endif
#ifndef WEFT_WITH_CUDA
#define WEFT_WITH_CUDA 0
#endif
#ifndef WEFT_WITH_NCCL
#define WEFT_WITH_NCCL 0
#endif

// Functions that are not templates are defined in impl/*.ipp: inline in each unit that uses them, or, if
// WEFT_COMPILED is defined, once in the library weft::compiled.
#ifdef WEFT_COMPILED
#define WEFT_DEFINE

namespace weft::detail {
template <bool>
struct with_tbb;
template <bool>
struct with_opencl;
template <bool>
struct with_cuda;
template <bool>
struct with_nccl;

inline namespace WEFT_ISA {
template <int Major, int Minor, int Patch, class... Components>
struct compiled_library {
  static const char here;
};
/// Each unit refers to the library of its own version, instruction set and components, so others do not link.
[[gnu::used, gnu::retain]] static const char* const compiled_library_of_this_unit =
    &compiled_library<WEFT_VERSION_MAJOR, WEFT_VERSION_MINOR, WEFT_VERSION_PATCH, with_tbb<WEFT_WITH_TBB>,
                      with_opencl<WEFT_WITH_OPENCL>, with_cuda<WEFT_WITH_CUDA>,
                      with_nccl<WEFT_WITH_NCCL>>::here;
}  // namespace WEFT_ISA
}  // namespace weft::detail
#else
#define WEFT_DEFINE inline
#endif

namespace weft {

/// Number of elements, an extent or an offset. Signed, so that differences are safe.
using index_t = std::int64_t;

/// Whether two addresses are those of the same object or function, as a constant expression also for inline
/// variables and templates: with -fsanitize=null, g++ treats these as possibly null and does not evaluate a
/// == b where they differ.
constexpr bool same_object(const void* a, const void* b) {
  if (std::is_constant_evaluated()) return __builtin_constant_p(a == b) && a == b;
  return a == b;
}

inline namespace WEFT_ISA {

/// The instruction set for which this unit was compiled.
constexpr const char* compiled_isa() {
#define WEFT_NAME_OF(set) #set
#define WEFT_NAME(set) WEFT_NAME_OF(set)
  return WEFT_NAME(WEFT_ISA);
#undef WEFT_NAME
#undef WEFT_NAME_OF
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
