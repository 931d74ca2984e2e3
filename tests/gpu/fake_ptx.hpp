// SPDX-License-Identifier: MIT
// PTX for the compiler of the fake driver: each instruction in an asm statement becomes a call of a function
// of the same name, with the operands in order, which computes the result that the PTX ISA specifies. An
// instruction without a function does not compile. Warp instructions run when all 32 lanes have reached them
// (fake_cuda.cpp).
#pragma once

#include <cctype>
#include <string>
#include <vector>

#include "fake_warp_words.hpp"

namespace fake_ptx {

constexpr const char* instructions = FAKE_TEXT(FAKE_WARP_WORDS) R"(
struct fake_places { unsigned item, items, group, groups; };
extern "C" { fake_warp_words fake_warp; fake_places fake_place; }

struct alignas(16) uint4 { unsigned x, y, z, w; };
static int min(int a, int b) { return a < b ? a : b; }
static int max(int a, int b) { return a > b ? a : b; }
static float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
static float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static float sqrtf(float x) { return __builtin_sqrtf(x); }
static unsigned long __cvta_generic_to_shared(const void* at) { return (const char*)at - fake_warp.memory; }

/* Bytes of shared memory at an address of PTX. */
static char* fake_shared(unsigned address, unsigned bytes) {
  if (address % bytes != 0 || address + bytes > fake_warp.bytes) {
    fake_warp.note("an address of shared memory is not aligned, or outside of it");
    return fake_warp.memory;
  }
  return fake_warp.memory + address;
}
template <class Operands>
__attribute__((noinline)) static void fake_meet(Operands& own, void (*together)(void** lanes)) {
  fake_warp.meet(__builtin_return_address(0), &own, together);
}

static float fake_of_bf16(unsigned bits) { return __builtin_bit_cast(float, bits << 16); }
static float fake_of_f16(unsigned bits) {
  const int exponent = bits >> 10 & 31, digits = bits & 1023;
  float size = exponent == 0    ? __builtin_ldexpf(digits, -24)
               : exponent == 31 ? (digits ? __builtin_nanf("") : __builtin_inff())
                                : __builtin_ldexpf(1024 + digits, exponent - 25);
  return bits & 0x8000 ? -size : size;
}
/* The nearest number with so many binary digits after the first, and no exponent below `least`. */
static double fake_rounded(double x, int digits, int least) {
  const int e = x == 0 ? least : __builtin_ilogb(x) < least ? least : __builtin_ilogb(x);
  return __builtin_ldexp(__builtin_rint(__builtin_ldexp(x, digits - e)), e - digits);
}
static unsigned fake_to_bf16(float x) {
  if (x != x) return 0x7fff;
  if (__builtin_isinf(x)) return x > 0 ? 0x7f80 : 0xff80;
  return __builtin_bit_cast(unsigned, (float)fake_rounded(x, 7, -126)) >> 16;
}
static unsigned fake_to_f16(float x) {
  if (x != x) return 0x7fff;
  const unsigned sign = __builtin_signbit(x) ? 0x8000 : 0;
  const double size = __builtin_isinf(x) ? x : fake_rounded(x, 10, -14);
  const double y = size < 0 ? -size : size;
  if (y > 65504) return sign | 0x7c00;
  if (y < 6.103515625e-5) return sign | (unsigned)__builtin_ldexp(y, 24);
  const int e = __builtin_ilogb(y);
  return sign | (unsigned)(e + 15) << 10 | (unsigned)(__builtin_ldexp(y, 10 - e) - 1024);
}
static void ptx_cvt_rn_bf16x2_f32(unsigned& pair, float high, float low) {
  pair = fake_to_bf16(high) << 16 | fake_to_bf16(low);
}
static void ptx_cvt_rn_f16x2_f32(unsigned& pair, float high, float low) {
  pair = fake_to_f16(high) << 16 | fake_to_f16(low);
}
static void ptx_cvt_rn_bf16_f32(unsigned short& y, float x) { y = fake_to_bf16(x); }
static void ptx_cvt_rn_f16_f32(unsigned short& y, float x) { y = fake_to_f16(x); }
static void ptx_cvt_f32_f16(float& x, unsigned short bits) { x = fake_of_f16(bits); }
static void ptx_ex2_approx_ftz_f32(float& y, float x) {
  y = __builtin_exp2f(x);
  if (y < 1.17549435e-38f) y = 0;
}

struct fake_matrices { unsigned address, word[4]; };
template <bool Transposed>
static void fake_load(void** lanes) {
  unsigned short row[32][8];
  for (int i = 0; i < 32; ++i)
    __builtin_memcpy(row[i], fake_shared(((fake_matrices*)lanes[i])->address, 16), 16);
  for (int lane = 0; lane < 32; ++lane)
    for (int matrix = 0; matrix < 4; ++matrix) {
      const int along = lane / 4, across = lane % 4 * 2;
      const auto element = [&](int r, int c) { return (unsigned)row[8 * matrix + r][c]; };
      ((fake_matrices*)lanes[lane])->word[matrix] =
          Transposed ? element(across, along) | element(across + 1, along) << 16
                     : element(along, across) | element(along, across + 1) << 16;
    }
}
#define FAKE_LOAD(name, transposed)                                                                \
  inline __attribute__((always_inline)) static void name(unsigned& a, unsigned& b, unsigned& c,   \
                                                         unsigned& d, unsigned address) {         \
    fake_matrices own{address, {}};                                                                \
    fake_meet(own, &fake_load<transposed>);                                                        \
    a = own.word[0], b = own.word[1], c = own.word[2], d = own.word[3];                            \
  }
FAKE_LOAD(ptx_ldmatrix_sync_aligned_m8n8_x4_shared_b16, false)
FAKE_LOAD(ptx_ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16, true)

struct fake_product { unsigned a[4], b[2]; float sum[4]; };
template <float (*Value)(unsigned)>
static void fake_multiply(void** lanes) {
  double a[16][16], b[16][8];
  const auto of = [&](int lane) -> fake_product& { return *(fake_product*)lanes[lane]; };
  for (int lane = 0; lane < 32; ++lane) {
    const int group = lane >> 2, in_group = lane % 4;
    for (int i = 0; i < 8; ++i) {
      const int row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
      a[row][in_group * 2 + (i & 1) + (i < 4 ? 0 : 8)] = Value(of(lane).a[i / 2] >> i % 2 * 16 & 0xffff);
    }
    for (int i = 0; i < 4; ++i)
      b[in_group * 2 + (i & 1) + (i < 2 ? 0 : 8)][group] = Value(of(lane).b[i / 2] >> i % 2 * 16 & 0xffff);
  }
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i) {
      const int row = i < 2 ? lane >> 2 : (lane >> 2) + 8, column = lane % 4 * 2 + (i & 1);
      double sum = of(lane).sum[i];
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
      of(lane).sum[i] = (float)sum;
    }
}
#define FAKE_PRODUCT(name, value)                                                                  \
  inline __attribute__((always_inline)) static void name(                                          \
      float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1, unsigned a2,           \
      unsigned a3, unsigned b0, unsigned b1, float c0, float c1, float c2, float c3) {             \
    fake_product own{{a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}};                                \
    fake_meet(own, &fake_multiply<value>);                                                         \
    d0 = own.sum[0], d1 = own.sum[1], d2 = own.sum[2], d3 = own.sum[3];                            \
  }
FAKE_PRODUCT(ptx_mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32, fake_of_bf16)
FAKE_PRODUCT(ptx_mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32, fake_of_f16)

/* Instructions of warpgroups, of which each warp computes its 16 rows on its own. */
static const int adds = 1;
static bool fake_unseen[1024]; /* by item: whether it has written to shared memory what wgmma may not see */
static void ptx_wgmma_fence_sync_aligned() {}
static void ptx_wgmma_commit_group_sync_aligned() {}
static void ptx_wgmma_wait_group_sync_aligned(int) {}
static void ptx_fence_proxy_async_shared__cta() { fake_unseen[fake_place.item] = false; }
/* Element `along` of row `row` of what a matrix descriptor with the swizzle of 128 bytes describes; or, if
   `turned`, element `row` of row `along`. */
static unsigned fake_described(unsigned long matrix, int row, int along, bool turned) {
  const unsigned start = (matrix & 0x3fff) << 4, to_next = (matrix >> 16 & 0x3fff) << 4,
                 to_eight = (matrix >> 32 & 0x3fff) << 4;
  if (matrix >> 62 != 1 || to_eight % 1024 != 0)
    fake_warp.note("wgmma: a tile without the swizzle of 128 bytes");
  unsigned at = turned ? start + row / 64 * to_next + along / 8 * to_eight + along % 8 * 128 + row % 64 * 2
                       : start + row / 8 * to_eight + row % 8 * 128 + along * 2;
  at ^= (at >> 7 & 7) << 4;
  return *(unsigned short*)fake_shared(at, 2);
}
struct fake_group_product { void** operand; int warp; bool unseen; };
template <int N, bool InRegisters, float (*Value)(unsigned)>
static void fake_multiply_groups(void** lanes) {
  constexpr int sums = N / 2;
  double a[16][16], b[16][N];
  const auto of = [&](int lane) -> fake_group_product& { return *(fake_group_product*)lanes[lane]; };
  for (int lane = 0; lane < 32; ++lane)
    if (of(lane).unseen) fake_warp.note("wgmma: shared memory was written without fence.proxy.async since");
  const auto matrix = [&](int k) { return *(unsigned long*)of(0).operand[sums + k]; };
  for (int r = 0; r < 16; ++r)
    for (int k = 0; k < 16; ++k)
      if constexpr (InRegisters) {
        const unsigned pair = *(unsigned*)of(r % 8 * 4 + k % 8 / 2).operand[sums + k / 8 * 2 + r / 8];
        a[r][k] = Value(pair >> k % 2 * 16 & 0xffff);
      } else a[r][k] = Value(fake_described(matrix(0), 16 * of(0).warp + r, k, false));
  for (int k = 0; k < 16; ++k)
    for (int n = 0; n < N; ++n)
      b[k][n] = Value(fake_described(matrix(InRegisters ? 4 : 1), n, k, InRegisters));
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < sums; ++i) {
      const int row = lane / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      float& to = *(float*)of(lane).operand[i];
      double sum = to;
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
      to = (float)sum;
    }
}
#define FAKE_GROUP_PRODUCT(name, n, value)                                                         \
  template <class... Operands>                                                                     \
  inline __attribute__((always_inline)) static void name(Operands&&... operands) {                 \
    void* all[] = {(void*)&operands...};                                                           \
    constexpr bool in_registers = sizeof...(Operands) == n / 2 + 9;                                \
    static_assert(in_registers || sizeof...(Operands) == n / 2 + 7);                               \
    fake_group_product own{all, (int)fake_place.item / 32 % 4, fake_unseen[fake_place.item]};      \
    fake_meet(own, &fake_multiply_groups<n, in_registers, value>);                                 \
  }
FAKE_GROUP_PRODUCT(ptx_wgmma_mma_async_sync_aligned_m64n32k16_f32_bf16_bf16, 32, fake_of_bf16)
FAKE_GROUP_PRODUCT(ptx_wgmma_mma_async_sync_aligned_m64n64k16_f32_bf16_bf16, 64, fake_of_bf16)
FAKE_GROUP_PRODUCT(ptx_wgmma_mma_async_sync_aligned_m64n128k16_f32_bf16_bf16, 128, fake_of_bf16)
FAKE_GROUP_PRODUCT(ptx_wgmma_mma_async_sync_aligned_m64n32k16_f32_f16_f16, 32, fake_of_f16)
FAKE_GROUP_PRODUCT(ptx_wgmma_mma_async_sync_aligned_m64n64k16_f32_f16_f16, 64, fake_of_f16)
FAKE_GROUP_PRODUCT(ptx_wgmma_mma_async_sync_aligned_m64n128k16_f32_f16_f16, 128, fake_of_f16)

template <class T>
struct fake_shuffle { T x; int bits; T seen; };
template <class T>
static void fake_exchange(void** lanes) {
  for (int lane = 0; lane < 32; ++lane) {
    fake_shuffle<T>& own = *(fake_shuffle<T>*)lanes[lane];
    own.seen = ((fake_shuffle<T>*)lanes[(lane ^ own.bits) & 31])->x;
  }
}
template <class T>
inline __attribute__((always_inline)) static T __shfl_xor_sync(unsigned, T x, int bits) {
  fake_shuffle<T> own{x, bits, 0};
  fake_meet(own, &fake_exchange<T>);
  return own.seen;
}

static void ptx_cp_async_cg_shared_global(unsigned to, const void* from, int bytes, int there) {
  if ((unsigned long)from % 16 != 0 || bytes != 16 || there < 0 || there > 16)
    fake_warp.note("cp.async: not 16 aligned bytes");
  fake_warp.copy(fake_shared(to, 16), from, there, 16);
}
static void ptx_cp_async_ca_shared_global(unsigned to, const void* from, int bytes) {
  if ((unsigned long)from % 4 != 0 || bytes != 4) fake_warp.note("cp.async: not 4 aligned bytes");
  fake_warp.copy(fake_shared(to, 4), from, 4, 4);
}
static void ptx_cp_async_commit_group() { fake_warp.commit(); }
static void ptx_cp_async_wait_group(int left) {
  fake_warp.await(left);
  fake_unseen[fake_place.item] = true;
}
)";

/// The parts of `text` between separators outside strings and parentheses.
inline std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  int depth = 0;
  bool quoted = false;
  for (char c : text) {
    quoted ^= c == '"';
    if (!quoted) depth += (c == '(') + (c == '[') - (c == ')') - (c == ']');
    if (c == separator && depth == 0 && !quoted) parts.emplace_back();
    else parts.back() += c;
  }
  return parts;
}

/// The concatenated text between quotes.
inline std::string quoted_part(const std::string& text) {
  std::string all;
  bool quoted = false;
  for (char c : text)
    if (c == '"') quoted = !quoted;
    else if (quoted) all += c;
  return all;
}

/// The call that replaces an asm statement with these contents.
inline std::string called(const std::string& statement) {
  const std::vector<std::string> parts = split(statement, ':');
  std::vector<std::string> operands;
  for (std::size_t i = 1; i < parts.size() && i < 3; ++i)
    for (const std::string& operand : split(parts[i], ','))
      if (const auto at = operand.find('('); at != operand.npos) operands.push_back(operand.substr(at));
  std::string instruction = quoted_part(parts[0]);
  if (instruction.empty()) return "(void)0";  // it only orders accesses to its operands
  if (const auto at = instruction.find("wgmma.mma"); at != instruction.npos)
    instruction = instruction.substr(at);  // without the instructions that set its predicate to 1
  const std::size_t name_end = instruction.find_first_of(" ;");
  std::string call = "ptx_";
  for (char c : instruction.substr(0, name_end)) call += c == '.' || c == ':' ? '_' : c;
  call += "(";
  for (std::size_t i = name_end; instruction[i] != ';'; ++i) {
    if (instruction[i] != '%') {
      if (std::string("{}[] ").find(instruction[i]) == std::string::npos) call += instruction[i];
      continue;
    }
    std::size_t number = 0;
    for (; std::isdigit(static_cast<unsigned char>(instruction[i + 1])); ++i)
      number = 10 * number + static_cast<std::size_t>(instruction[i + 1] - '0');
    call += operands.at(number);
  }
  return call + ")";
}

/// Replaces the asm statements in CUDA C++, and places a launch's shared memory where the driver put it.
inline std::string translated(std::string text) {
  for (const char* word : {"asm volatile(", "asm("})
    for (std::size_t at = 0; (at = text.find(word, at)) != text.npos;) {
      const std::size_t open = text.find('(', at);
      std::size_t end = open + 1;
      for (int depth = 1; depth > 0; ++end) depth += (text[end] == '(') - (text[end] == ')');
      text.replace(at, end - at, called(text.substr(open + 1, end - open - 2)));
    }
  const std::string shared = "extern __shared__ __align__(1024) uint4 name[];";
  if (const std::size_t at = text.find(shared); at != text.npos)
    text.replace(at, shared.size(), "uint4* const name = (uint4*)fake_warp.memory;");
  return text;
}

}  // namespace fake_ptx
