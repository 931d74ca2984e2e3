// SPDX-License-Identifier: MIT
// Vocabulary of the dialect for tensor cores, for CUDA devices of compute capability 8.0 or higher: products
// of tiles by the 32 lanes of a warp, and copies that run while it computes. All lanes of a warp must execute
// each word for matrices and lanes together.
//
// Lane L holds a fragment of a matrix: 16-bit numbers, two in a word, the first one in the lower half (PTX
// ISA, "Matrix Fragments for mma.m16n8k16"), with g = L / 4 and t = L % 4:
//   a [16][16]: word w has (g + w % 2 * 8, 2 t + w / 2 * 8) and the element right of it
//   b [16][8]:  word w has (2 t + w * 8, g) and the element below it
//   sum [16][8], f32: element e is (g + e / 2 * 8, 2 t + e % 2)
#pragma once

namespace weft::gpu {

/// The minimum compute capability of devices that have tensor cores.
inline constexpr int tensor_core_capability = 8;

/// The words, in CUDA C++ with PTX.
inline constexpr const char* tensor_core_words = R"(
/* Memory that a group shares, as much as its launch asks for. */
#define GROUP_MEMORY(name) extern __shared__ __align__(1024) uint4 name[];

FUNCTION uint shared_address(const void* at) { return (uint)__cvta_generic_to_shared(at); }

/* Four matrices [8][8]: lanes 8 i to 8 i + 7 give the addresses of the rows of matrix i, of 16 bytes. Word i
   of lane L has the elements (L / 4, 2 (L % 4)) of matrix i and the one right of it; or, transposed, the
   elements (2 (L % 4), L / 4) and the one below it. */
FUNCTION void load_matrices(uint* to, uint row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row) : "memory");
}
FUNCTION void load_transposed(uint* to, uint row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row) : "memory");
}

/* sum += a b. */
FUNCTION void add_product_bf16(float* sum, const uint* a, const uint* b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
FUNCTION void add_product_f16(float* sum, const uint* a, const uint* b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Two numbers, rounded, in one word. */
FUNCTION uint pair_of_bf16(float low, float high) {
  uint pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
FUNCTION uint pair_of_f16(float low, float high) {
  uint pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

/* Copies to shared memory, of 16 bytes, of which the first `bytes` come from device memory and the others are
   0; both addresses are multiples of 16; begin_copy_at takes a shared_address. Or of 4 bytes. What a thread
   has begun since the last end_of_copies is one group; after await_copies<N>, all but its last N groups are
   there. */
FUNCTION void begin_copy_at(uint to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               : : "r"(to), "l"(from), "r"(bytes) : "memory");
}
FUNCTION void begin_copy(void* to, const void* from, int bytes) {
  begin_copy_at(shared_address(to), from, bytes);
}
FUNCTION void begin_small_copy(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
               : : "r"(shared_address(to)), "l"(from) : "memory");
}
FUNCTION void end_of_copies() { asm volatile("cp.async.commit_group;" : : : "memory"); }
template <int N>
FUNCTION void await_copies() {
  asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory");
}

/* 2 to the power of x, within 2 units in the last place. */
FUNCTION float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/* x of the lane whose number differs in these bits. */
FUNCTION float of_lane_across(float x, int bits) { return OF_LANE_ACROSS(x, bits); }
)";

}  // namespace weft::gpu
