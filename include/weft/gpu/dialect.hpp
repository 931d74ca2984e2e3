// SPDX-License-Identifier: MIT
// The dialect of kernel sources, defined in OpenCL C and in CUDA C++.
//
// Kernel sources are C with these macros for what the two languages name differently: KERNEL, FUNCTION,
// GLOBAL (pointers to device memory), SHARED (memory of a group), LOCAL_ID, GROUP_ID, GLOBAL_ID, their
// counts, BARRIER, and AWAIT(x), a use of a loaded value: the loads before it are issued together, where
// CUDA's compiler would move each to its first use. Only CUDA has OF_LANE_ACROSS(x, bits), the x of the item
// whose number differs in these bits, for groups of whole warps of 32. Indices are `long`, which has 64 bits
// in both. Both languages have the types uint2, uint4 and float4, and _Pragma("unroll"). HAS_DOUBLE is
// defined for devices that compute in f64 (backend::has_f64).
#pragma once

#include <weft/device/kernel.hpp>

namespace weft::gpu {

/// Work items per group, in every kernel that does not specify another number.
inline constexpr int group_size = row_groups::least_items;

/// The dialect's definitions in OpenCL C.
inline constexpr const char* opencl_dialect = R"(
#if defined HAS_DOUBLE && defined cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#define KERNEL __kernel __attribute__((reqd_work_group_size(GROUP_SIZE, 1, 1))) void
#define FUNCTION
#define GLOBAL __global
#define SHARED __local
#define SHARED_MEMORY __local
#define LOCAL_ID ((long)get_local_id(0))
#define GROUP_ID ((long)get_group_id(0))
#define GROUPS ((long)get_num_groups(0))
#define GLOBAL_ID ((long)get_global_id(0))
#define GLOBAL_SIZE ((long)get_global_size(0))
#define BARRIER barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define FLOAT_OF_BITS(x) as_float((uint)(x))
#define DOUBLE_OF_BITS(x) as_double((ulong)(x))
#define BITS_OF_FLOAT(x) as_uint(x)
#define AWAIT(x)
)";

/// The dialect's definitions in CUDA C++.
inline constexpr const char* cuda_dialect = R"(
#define HAS_DOUBLE 1
#if __CUDA_ARCH__ >= 800
#define HAS_CONVERSIONS 1
#endif
#if GROUP_SIZE > 256 /* not more registers than there are for so many items */
#define KERNEL extern "C" __global__ void __launch_bounds__(GROUP_SIZE)
#else
#define KERNEL extern "C" __global__ void
#endif
#define FUNCTION static __device__
#define GLOBAL
#define SHARED
#define SHARED_MEMORY __shared__
#define LOCAL_ID ((long)threadIdx.x)
#define GROUP_ID ((long)blockIdx.x)
#define GROUPS ((long)gridDim.x)
#define GLOBAL_ID (GROUP_ID * (long)blockDim.x + LOCAL_ID)
#define GLOBAL_SIZE (GROUPS * (long)blockDim.x)
#define BARRIER __syncthreads()
#define OF_LANE_ACROSS(x, bits) __shfl_xor_sync(0xffffffffu, x, bits)
#define CONSTANT_PARAMS const __grid_constant__ PARAMS
#define FLOAT_OF_BITS(x) __uint_as_float((uint)(x))
#define DOUBLE_OF_BITS(x) __longlong_as_double((long long)(x))
#define BITS_OF_FLOAT(x) __float_as_uint(x)
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
#ifdef __CUDA_ARCH__
#define DEFINE_AWAIT(T, letter) \
  FUNCTION void await(T& x) { asm volatile("" : "+" letter(x)); }
DEFINE_AWAIT(ushort, "h")
DEFINE_AWAIT(int, "r")
DEFINE_AWAIT(uint, "r")
DEFINE_AWAIT(long, "l")
DEFINE_AWAIT(ulong, "l")
DEFINE_AWAIT(float, "f")
DEFINE_AWAIT(double, "d")
FUNCTION void await(uchar& x) {
  ushort wide = x;
  await(wide);
  x = (uchar)wide;
}
FUNCTION void await(uint2& x) { asm volatile("" : "+r"(x.x), "+r"(x.y)); }
FUNCTION void await(uint4& x) { asm volatile("" : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w)); }
#define AWAIT(x) await(x)
#else
#define AWAIT(x)
#endif
)";

/// Functions in the dialect for both languages: conversion of storage types, reductions over a group, random
/// bits (base/philox.hpp).
inline constexpr const char* common_vocabulary = R"(
typedef long i64; typedef int i32; typedef uchar u8; typedef uchar boolean;
typedef ushort bf16; typedef ushort f16; typedef float f32;
#ifdef HAS_DOUBLE
typedef double f64;
#endif

FUNCTION float bf16_to_f32(ushort x) { return FLOAT_OF_BITS((uint)x << 16); }
#ifdef HAS_CONVERSIONS
FUNCTION ushort f32_to_bf16(float x) {
  ushort y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
FUNCTION float f16_to_f32(ushort x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
FUNCTION ushort f32_to_f16(float x) {
  ushort y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
#else
FUNCTION ushort f32_to_bf16(float x) {
  uint u = BITS_OF_FLOAT(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return (ushort)(u >> 16 | 0x40u);
  return (ushort)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}
FUNCTION float f16_to_f32(ushort x) {
  uint sign = ((uint)x & 0x8000u) << 16, rest = (uint)x & 0x7fffu;
  if (rest > 0x7c00u) return FLOAT_OF_BITS(sign | 0x7fc00000u | (rest & 0x3ffu) << 13);
  if (rest == 0x7c00u) return FLOAT_OF_BITS(sign | 0x7f800000u);
  if (rest >= 0x0400u) return FLOAT_OF_BITS(sign | ((rest << 13) + 0x38000000u));
  float small = (float)rest * 5.9604644775390625e-8f;
  return sign ? -small : small;
}
FUNCTION ushort f32_to_f16(float x) {
  uint u = BITS_OF_FLOAT(x), sign = u >> 16 & 0x8000u, size = u & 0x7fffffffu, shift, middle;
  if (size > 0x7f800000u) return (ushort)(sign | 0x7e00u | (size >> 13 & 0x1ffu));
  if (size >= 0x477ff000u) return (ushort)(sign | 0x7c00u);
  if (size >= 0x38800000u) {
    size -= 0x38000000u;
    return (ushort)(sign | (size + 0xfffu + (size >> 13 & 1u)) >> 13);
  }
  if (size < 0x33000000u) return (ushort)sign;
  shift = 126 - (size >> 23);
  size = (size & 0x7fffffu) | 0x800000u;
  middle = 1u << (shift - 1);
  return (ushort)(sign | (size + middle - 1 + (size >> shift & 1u)) >> shift);
}
#endif

#define DEFINE_TRUNCATION(F, R, end, low, high) \
  FUNCTION R F##_to_##R(F x) { \
    return x >= (F)(end) ? (R)(high) : x <= (F)(low) ? (R)(low) : x == x ? (R)x : 0; \
  }
#define DEFINE_TRUNCATIONS(F) \
  DEFINE_TRUNCATION(F, i64, 9223372036854775808.0f, (-0x7fffffffffffffffl - 1), 0x7fffffffffffffffl) \
  DEFINE_TRUNCATION(F, i32, 2147483648.0f, (-0x7fffffff - 1), 0x7fffffff) \
  DEFINE_TRUNCATION(F, u8, 256.0f, 0, 255)
DEFINE_TRUNCATIONS(f32)
#ifdef HAS_DOUBLE
DEFINE_TRUNCATIONS(f64)
#endif

#define LARGER(a, b) (((a) > (b) || (a) != (a)) ? (a) : (b))
#define SMALLER(a, b) (((a) < (b) || (a) != (a)) ? (a) : (b))
#define SUM(a, b) ((a) + (b))
/* x of all items of a group, halves of which are combined, then halves of these, down to one; of whole warps
   first that of each, then these. */
#if defined OF_LANE_ACROSS && GROUP_SIZE % 32 == 0
#define DEFINE_FOLD(name, T, combine)                          \
  FUNCTION T name(T x, SHARED T* shared) {                     \
    for (int s = 16; s > 0; s /= 2) {                          \
      const T other = OF_LANE_ACROSS(x, s);                    \
      x = LOCAL_ID & s ? combine(other, x) : combine(x, other); \
    }                                                          \
    if (GROUP_SIZE == 32) return x;                            \
    if (LOCAL_ID % 32 == 0) shared[LOCAL_ID / 32] = x;         \
    BARRIER;                                                   \
    x = shared[LOCAL_ID % (GROUP_SIZE / 32)];                  \
    BARRIER;                                                   \
    for (int s = GROUP_SIZE / 64; s > 0; s /= 2) {             \
      const T other = OF_LANE_ACROSS(x, s);                    \
      x = LOCAL_ID & s ? combine(other, x) : combine(x, other); \
    }                                                          \
    return x;                                                  \
  }
#elif GROUP_SIZE % 32 == 0
#define DEFINE_FOLD(name, T, combine)                          \
  FUNCTION T name(T x, SHARED T* shared) {                     \
    shared[LOCAL_ID] = x;                                      \
    BARRIER;                                                   \
    for (int s = 16; s > 0; s /= 2) {                          \
      if (LOCAL_ID % 32 < s)                                   \
        shared[LOCAL_ID] = combine(shared[LOCAL_ID], shared[LOCAL_ID + s]); \
      BARRIER;                                                 \
    }                                                          \
    for (int s = GROUP_SIZE / 64; s > 0; s /= 2) {             \
      if (LOCAL_ID < s)                                        \
        shared[LOCAL_ID * 32] = combine(shared[LOCAL_ID * 32], shared[(LOCAL_ID + s) * 32]); \
      BARRIER;                                                 \
    }                                                          \
    T y = shared[0];                                           \
    BARRIER;                                                   \
    return y;                                                  \
  }
#else
#define DEFINE_FOLD(name, T, combine)                          \
  FUNCTION T name(T x, SHARED T* shared) {                     \
    shared[LOCAL_ID] = x;                                      \
    BARRIER;                                                   \
    for (int s = GROUP_SIZE / 2; s > 0; s /= 2) {              \
      if (LOCAL_ID < s)                                        \
        shared[LOCAL_ID] = combine(shared[LOCAL_ID], shared[LOCAL_ID + s]); \
      BARRIER;                                                 \
    }                                                          \
    T y = shared[0];                                           \
    BARRIER;                                                   \
    return y;                                                  \
  }
#endif
#define DEFINE_FOLDS(T)            \
  DEFINE_FOLD(fold_sum_##T, T, SUM) \
  DEFINE_FOLD(fold_max_##T, T, LARGER) \
  DEFINE_FOLD(fold_min_##T, T, SMALLER)
DEFINE_FOLDS(f32)
DEFINE_FOLDS(i32)
DEFINE_FOLDS(i64)
#ifdef HAS_DOUBLE
DEFINE_FOLDS(f64)
#endif

FUNCTION long element_offset(long i, int order, const long* extent, const long* stride) {
  long offset = 0;
  for (int d = order; d-- > 0;) {
    offset += i % extent[d] * stride[d];
    i /= extent[d];
  }
  return offset;
}

FUNCTION long element_count(int order, const long* extent) {
  long n = 1;
  for (int d = 0; d < order; ++d) n *= extent[d];
  return n;
}

FUNCTION ulong mix(ulong hash, ulong value) {
  ulong z = hash + 0x9E3779B97F4A7C15ul * (value + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ul;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBul;
  return z ^ (z >> 31);
}
FUNCTION uint philox_word(ulong key, ulong i) {
  uint low = (uint)key, high = (uint)(key >> 32);
  uint c0 = (uint)(i / 4), c1 = (uint)(i / 4 >> 32), c2 = 0, c3 = 0;
  for (int round = 0; round < 10; ++round) {
    ulong p = 0xD2511F53ul * c0, q = 0xCD9E8D57ul * c2;
    c0 = (uint)(q >> 32) ^ c1 ^ low;
    c2 = (uint)(p >> 32) ^ c3 ^ high;
    c1 = (uint)q;
    c3 = (uint)p;
    low += 0x9E3779B9u;
    high += 0xBB67AE85u;
  }
  return i % 4 == 0 ? c0 : i % 4 == 1 ? c1 : i % 4 == 2 ? c2 : c3;
}
)";

}  // namespace weft::gpu
