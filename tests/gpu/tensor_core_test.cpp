// SPDX-License-Identifier: MIT
// The macros for tensor cores, computed by the fake driver, against the tables of the PTX ISA; and attention
// written with these macros, against its formula in double.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <weft/base/philox.hpp>
#include <weft/gpu/cuda.hpp>

#include "../attention.hpp"
#include "fake_cuda.hpp"

using namespace weft;
namespace oracle = test::oracle;

namespace {

using halves = std::vector<std::uint16_t>;
using words = std::vector<std::uint32_t>;

device nvidia() { return device(std::make_shared<gpu::cuda_backend>()); }
/// Sets the compute capability of devices: 9 multiplies by warpgroups, 8 by warps.
device nvidia(const char* capability) {
  setenv("FAKE_CUDA_CAPABILITY", capability, 1);
  const device d = nvidia();
  unsetenv("FAKE_CUDA_CAPABILITY");
  return d;
}

/// The contents of `uint to[4]` in the lanes of a warp after `body`, which has 256 16-bit numbers at `in` in
/// device memory, and room for as many at `from` in shared memory.
words of_lanes(const std::string& body, const halves& numbers, unsigned lanes = 32,
               const std::string& more_words = "", unsigned shared_bytes = 512) {
  const gpu::cuda_functions cuda;
  const gpu::cuda_queue queue(cuda, 0);
  const auto current = queue.use();
  const auto code =
      gpu::nvrtc_compiler().compile(std::string(gpu::cuda_dialect) + "#define GROUP_SIZE 32" +
                                        gpu::common_vocabulary + gpu::tensor_core_words + more_words + R"(
        KERNEL weft_kernel(const ushort* in, uint* out) {
          GROUP_MEMORY(memory)
          ushort* from = (ushort*)memory;
          int lane = (int)LOCAL_ID;
          uint to[4] = {0, 0, 0, 0};
          )" + body + R"(
          for (int i = 0; i < 4; ++i) out[4 * lane + i] = to[i];
        })",
                                    "sm_" + cuda.capability(queue.device, ""));
  CUmodule module = nullptr;
  CUfunction kernel = nullptr;
  CUdeviceptr in = 0, out = 0;
  words found(4 * 32);
  cuda.check(cuda.load_module(&module, code.data()), "cuModuleLoadData");
  cuda.check(cuda.get_function(&kernel, module, "weft_kernel"), "cuModuleGetFunction");
  cuda.check(cuda.allocate(&in, 512), "cuMemAlloc");
  cuda.check(cuda.allocate(&out, 512), "cuMemAlloc");
  cuda.check(cuda.to_device(in, numbers.data(), 512, queue.stream), "cuMemcpyHtoDAsync");
  void* arguments[] = {&in, &out};
  cuda.check(cuda.launch(kernel, 1, 1, 1, lanes, 1, 1, shared_bytes, queue.stream, arguments, nullptr),
             "cuLaunchKernel");
  cuda.check(cuda.to_host(found.data(), out, 512, queue.stream), "cuMemcpyDtoHAsync");
  cuda.check(cuda.wait_stream(queue.stream), "cuStreamSynchronize");
  cuda.deallocate(in);
  cuda.deallocate(out);
  cuda.unload_module(module);
  return found;
}

constexpr const char* copied = R"(
  for (int i = lane; i < 32; i += GROUP_SIZE) begin_copy(from + 8 * i, in + 8 * i, 16);
  end_of_copies();
  await_copies<0>();
  BARRIER;
)";

/// 0, 1, 2, ... as 16-bit numbers.
halves counted() {
  halves all(256);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  return all;
}

/// Figure "ldmatrix fragment layout" of the PTX ISA: the row of a matrix [8][8] of which lane L has two
/// elements, and the column of the first.
constexpr int fragment_row[32] = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3,
                                  4, 4, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7};
constexpr int fragment_column[32] = {0, 2, 4, 6, 0, 2, 4, 6, 0, 2, 4, 6, 0, 2, 4, 6,
                                     0, 2, 4, 6, 0, 2, 4, 6, 0, 2, 4, 6, 0, 2, 4, 6};

/// The element at (row, column) of a 16 x 16 matrix, a multiple of 1/16 that is exact in either type.
double element_at(int row, int column) { return (row * 7 + column * 3) % 16 / 16.0 - 0.5; }
std::uint16_t bits_of(double x, dtype type) {
  const auto number = static_cast<float>(x);
  return type == dtype::bf16 ? bfloat16(number).bits : float16(number).bits;
}

}  // namespace

TEST_CASE("matrices are loaded as the PTX ISA says: four of 8 x 8, as they are and transposed") {
  // 16 rows of 16 numbers; matrix i is at row i / 2 * 8, column i % 2 * 8
  const std::string load = std::string(copied) + R"(
    ushort* row = from + (lane / 16 * 8 + lane % 8) * 16 + lane / 8 % 2 * 8;
    )";
  const words straight = of_lanes(load + "load_matrices(to, shared_address(row));", counted());
  const words turned = of_lanes(load + "load_transposed(to, shared_address(row));", counted());
  for (std::size_t lane = 0; lane < 32; ++lane)
    for (std::size_t i = 0; i < 4; ++i) {
      CAPTURE(lane);
      CAPTURE(i);
      const auto r = static_cast<unsigned>(fragment_row[lane]),
                 c = static_cast<unsigned>(fragment_column[lane]);
      const unsigned first = static_cast<unsigned>(i / 2 * 8 * 16 + i % 2 * 8);
      CHECK(straight[4 * lane + i] == ((first + r * 16 + c) | (first + r * 16 + c + 1) << 16));
      CHECK(turned[4 * lane + i] == ((first + c * 16 + r) | (first + (c + 1) * 16 + r) << 16));
    }
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("products of tiles have their factors and sums where the PTX ISA says") {
  for (const dtype type : {dtype::bf16, dtype::f16}) {
    halves numbers(256);
    for (int i = 0; i < 256; ++i)
      numbers[static_cast<std::size_t>(i)] = bits_of(element_at(i / 16, i % 16), type);
    // a is the matrix [row][column]; b its rows 0 to 15, columns 0 to 7; the sum starts as 100 row + column.
    // Elements are read one by one, by the formulas of the tables: a0, a1: (g, 2 t + i); a2, a3: (g + 8,
    // ...); a4 to a7: 8 columns further; b0, b1: (2 t + i, g); b2, b3: 8 rows further
    const words seen = of_lanes(R"(
      int g = lane >> 2, t = lane % 4;
      uint a[4], b[2];
      a[0] = in[g * 16 + 2 * t] | (uint)in[g * 16 + 2 * t + 1] << 16;
      a[1] = in[(g + 8) * 16 + 2 * t] | (uint)in[(g + 8) * 16 + 2 * t + 1] << 16;
      a[2] = in[g * 16 + 2 * t + 8] | (uint)in[g * 16 + 2 * t + 9] << 16;
      a[3] = in[(g + 8) * 16 + 2 * t + 8] | (uint)in[(g + 8) * 16 + 2 * t + 9] << 16;
      b[0] = in[2 * t * 16 + g] | (uint)in[(2 * t + 1) * 16 + g] << 16;
      b[1] = in[(2 * t + 8) * 16 + g] | (uint)in[(2 * t + 9) * 16 + g] << 16;
      float sum[4];
      for (int i = 0; i < 4; ++i) sum[i] = 100 * (g + i / 2 * 8) + 2 * t + i % 2;
      add_product_)" + std::string(name_of(type)) +
                                    R"((sum, a, b);
      for (int i = 0; i < 4; ++i) to[i] = BITS_OF_FLOAT(sum[i]);)",
                                numbers);
    for (std::size_t lane = 0; lane < 32; ++lane)
      for (std::size_t i = 0; i < 4; ++i) {
        const int row = fragment_row[lane] + (i < 2 ? 0 : 8),
                  column = fragment_column[lane] + static_cast<int>(i % 2);
        double sum = 100 * row + column;
        for (int k = 0; k < 16; ++k) sum += element_at(row, k) * element_at(k, column);
        CAPTURE(lane);
        CAPTURE(i);
        CHECK(std::bit_cast<float>(seen[4 * lane + i]) == static_cast<float>(sum));
      }
  }
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("products of warpgroups: tiles in shared memory, with what the descriptor says, and in registers") {
  // Rows of 64 numbers: the factors are the features from 16 on of rows 0 to 15 and of all 32 rows; or, on
  // the right, all 64 features of rows 16 to 31.
  const auto number = [](int row, int feature) { return element_at(row % 16, feature + row / 16); };
  for (const dtype type : {dtype::bf16, dtype::f16}) {
    halves numbers(256);
    for (int i = 0; i < 256; ++i) numbers[static_cast<std::size_t>(i)] = bits_of(i / 16.0 - 0.5, type);
    const std::string head = R"(
      for (int e = lane; e < 32 * 64; e += GROUP_SIZE) {
        int row = e / 64, f = e % 64;
        from[row / 8 * 512 + row % 8 * 64 + (f ^ row % 8 * 8)] = in[(row % 16 * 7 + (f + row / 16) * 3) % 16];
      }
      show_to_products();
      BARRIER;
      uint at = shared_address(from), a[4];
      int g = lane / 4, t = lane % 4;
      for (int i = 0; i < 4; ++i) {
        int row = g + i % 2 * 8, f = 2 * t + i / 2 * 8;
        a[i] = in[(row * 7 + f * 3) % 16] | (uint)in[(row * 7 + f * 3 + 3) % 16] << 16;
      }
      begin_products();)";
    const std::string tail = R"(
      end_products();
      for (int i = 0; i < 4; ++i) to[i] = BITS_OF_FLOAT(sum[PART][i]);)";
    for (int part = 0; part < 8; ++part) {
      const std::string here =
          "#define PART " + std::to_string(part) + "\n#define WARPGROUPS\n" + gpu::warpgroup_words(type);
      for (const bool in_registers : {false, true}) {
        if (!in_registers && part >= 4) continue;
        const std::string body =
            in_registers
                ? "float sum[8][4] = {}; add_register_products(sum, a, part_of_tile(at + 2048, 1024));"
                : "float sum[4][4] = {}; sum[PART][1] = 1;"
                  "add_tile_products(sum, part_of_tile(at + 32, 1024), part_of_tile(at + 32, 1024));";
        const words seen = of_lanes(head + body + tail, numbers, 32, here, 4096);
        for (std::size_t lane = 0; lane < 32; ++lane)
          for (std::size_t i = 0; i < 4; ++i) {
            const int row = fragment_row[lane] + (i < 2 ? 0 : 8),
                      column = 8 * part + fragment_column[lane] + static_cast<int>(i % 2);
            double sum = !in_registers && i == 1;
            for (int k = 0; k < 16; ++k)
              sum += in_registers ? number(row, k) * number(16 + k, column)
                                  : number(row, 16 + k) * number(column, 16 + k);
            CAPTURE(in_registers);
            CAPTURE(part);
            CAPTURE(lane);
            CAPTURE(i);
            CHECK(std::bit_cast<float>(seen[4 * lane + i]) == static_cast<float>(sum));
          }
      }
    }
  }
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("pairs are rounded to the nearest, the second number high; powers of two; lanes exchange numbers") {
  std::vector<float> samples{1.00390625f, 1.01171875f, -3.14159f, 65519.9f, 65520.0f, 1e-7f,   3e-8f,
                             6.1e-5f,     0.0f,        -0.0f,     1e38f,    -1e-40f,  2049.0f, 2051.0f};
  for (int i = 0; samples.size() < 64; ++i) samples.push_back(std::sin(static_cast<float>(i)) * 20);
  halves numbers(256);
  std::memcpy(numbers.data(), samples.data(), 64 * sizeof(float));
  for (const dtype type : {dtype::bf16, dtype::f16}) {
    const words seen = of_lanes(
        "float low = ((const float*)in)[2 * lane], high = ((const float*)in)[2 * lane + 1];"
        "to[0] = pair_of_" +
            std::string(name_of(type)) + R"((low, high);
      to[1] = BITS_OF_FLOAT(power_of_two(low));
      to[3] = BITS_OF_FLOAT()" +
            std::string(name_of(type)) + R"(_to_f32(to[0] >> 16));
      to[2] = BITS_OF_FLOAT(of_lane_across((float)lane, 2));)",
        numbers);
    for (std::size_t lane = 0; lane < 32; ++lane) {
      CAPTURE(lane);
      const float low = samples[2 * lane], high = samples[2 * lane + 1];
      CHECK(seen[4 * lane] == (unsigned{bits_of(low, type)} | unsigned{bits_of(high, type)} << 16));
      const auto power = static_cast<double>(std::bit_cast<float>(seen[4 * lane + 1]));
      CHECK((power == std::exp2(double{low}) || std::abs(power / std::exp2(double{low}) - 1) < 4e-7));
      CHECK(std::bit_cast<float>(seen[4 * lane + 2]) == static_cast<float>(lane ^ 2));
      const float rounded = type == dtype::bf16 ? float(bfloat16(high)) : float(float16(high));
      CHECK(seen[4 * lane + 3] == std::bit_cast<std::uint32_t>(rounded));
    }
  }
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("copies are there when they are awaited, with zeros after their bytes") {
  const words seen = of_lanes(R"(
    for (int i = 0; i < 8; ++i) from[8 * lane + i] = 7;
    begin_copy(from + 8 * lane, in + 8 * lane, lane % 9 * 2);
    end_of_copies();
    begin_small_copy(from + 8 * (lane ^ 1), in);
    end_of_copies();
    await_copies<1>();
    BARRIER;
    to[0] = *(uint*)(from + 8 * lane);
    to[1] = *(uint*)(from + 8 * lane + 4);
    await_copies<0>();
    BARRIER;
    to[2] = *(uint*)(from + 8 * lane);)",
                              counted());
  for (unsigned lane = 0; lane < 32; ++lane) {
    const auto element = [&](unsigned i) { return i < lane % 9 ? 8 * lane + i : 0; };
    CAPTURE(lane);
    CHECK(seen[4 * lane + 1] == (element(4) | element(5) << 16));
    CHECK(seen[4 * lane + 2] == 1u << 16);
    CHECK((seen[4 * lane] == (element(0) | element(1) << 16) || seen[4 * lane] == 1u << 16));
  }
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE(
    "the stand-in refuses lanes that do not meet, addresses that are not aligned, and copies left alone") {
  const auto misuse_of = [](const std::string& body, unsigned lanes = 32) {
    of_lanes(body, counted(), lanes);
    return fake_cuda::misuse();
  };
  const auto group_misuse_of = [](const std::string& body) {
    of_lanes(body, counted(), 32, "#define WARPGROUPS\n" + gpu::warpgroup_words(dtype::bf16), 4096);
    return fake_cuda::misuse();
  };
  const std::string product = "float sum[4][4]; add_tile_products(sum, tile, tile);";
  CHECK(group_misuse_of("await_copies<0>(); ulong tile = part_of_tile(0, 1024); " + product)
            .find("fence.proxy.async") != std::string::npos);
  CHECK(group_misuse_of("ulong tile = part_of_tile(0, 1040); " + product).find("swizzle") !=
        std::string::npos);
  CHECK(group_misuse_of("ulong tile = part_of_tile(2048, 1024); " + product).find("outside") !=
        std::string::npos);
  const std::string apart = "cuLaunchKernel: not every lane of a warp reaches an instruction of all\n";
  CHECK(misuse_of("if (lane != 5) load_matrices(to, shared_address(from));") == apart);
  CHECK(misuse_of("if (lane < 16) load_matrices(to, shared_address(from)); else BARRIER;") == apart);
  CHECK(misuse_of("if (lane < 16) { volatile uint before = lane; load_matrices(to, shared_address(from)); }"
                  "else { load_matrices(to, shared_address(from)); volatile uint after = lane; }") == apart);
  CHECK(misuse_of("load_matrices(to, shared_address(from));", 16) == apart);
  CHECK(misuse_of("if (lane != 5) BARRIER;").find("reaches a barrier") != std::string::npos);
  CHECK(misuse_of("load_matrices(to, shared_address(from + 4 * (lane == 9)));").find("not aligned") !=
        std::string::npos);
  CHECK(misuse_of("load_matrices(to, shared_address(from + 256 * (lane == 9)));").find("outside") !=
        std::string::npos);
  CHECK(misuse_of("if (lane == 9) begin_copy(from, in + 4, 16); await_copies<0>();").find("aligned") !=
        std::string::npos);
  CHECK(misuse_of("if (lane == 9) begin_copy(from, in, 16); end_of_copies();").find("before its copies") !=
        std::string::npos);
}

namespace {

/// The memory layout of [batch, position, head, feature].
enum class order { in_order, heads_first, parts_of_rows, one_off, every_second };

/// An attention problem: queries are at positions `first`, `first` + 1, ...; if masked causally (`hides`
/// below), a query sees no later keys.
struct problem {
  std::array<index_t, 2> positions, heads;  // of queries and of keys
  index_t features, first = 0;
  order stored = order::in_order;
  double scale = 1;  // of queries
};

/// Tensors in device memory as arrays of double, in any layout.
class on_device {
 public:
  explicit on_device(const device& d) : where(d) {}

  strided place(dtype type, const shape& extents, order how) {
    strided t;
    t.type = type;
    t.extents = extents;
    set_contiguous(t);
    if (how == order::heads_first) {
      t.stride[1] = extents[3];
      t.stride[2] = extents[1] * extents[3];
    }
    if (how == order::parts_of_rows) {
      t.stride[1] = 3 * extents[2] * extents[3] + 8;
      t.stride[0] = extents[1] * t.stride[1];
    }
    const index_t step = how == order::every_second ? 2 : 1, from = how == order::one_off ? 1 : 0;
    index_t last = from;
    for (int d = 0; d < extents.order; ++d) last += (extents[d] - 1) * (t.stride[d] *= step);
    const auto bytes = static_cast<std::size_t>((std::max<index_t>(last, 0) + 1) * size_of(type));
    memory.push_back(where.allocate(bytes));
    contents.emplace_back(bytes, std::byte{0xff});
    where->upload(memory.back().data(), contents.back().data(), bytes);
    t.pointer = static_cast<char*>(memory.back().data()) + from * size_of(type);
    return t;
  }
  strided put(const oracle::array& x, order how) {
    strided t = place(x.type, x.extents, how);
    std::vector<std::byte>& all = contents.back();
    const auto from = static_cast<char*>(t.pointer) - static_cast<char*>(memory.back().data());
    for (index_t i = 0; i < x.size(); ++i) {
      const std::uint16_t bits = bits_of(x.f[static_cast<std::size_t>(i)], x.type);
      std::memcpy(all.data() + from + 2 * element_offset(x.extents, t.stride, 0, 4, i), &bits, 2);
    }
    where->upload(memory.back().data(), all.data(), all.size());
    return t;
  }
  /// The elements of a placed tensor; the memory between them must be unchanged.
  oracle::array read(const strided& t) const {
    const auto size = static_cast<std::size_t>(size_of(t.type));
    index_t all = 1;
    for (int d = 0; d < t.extents.order; ++d) all += (t.extents[d] - 1) * t.stride[d];
    std::vector<std::byte> memory(static_cast<std::size_t>(std::max<index_t>(all, 0)) * size), bytes;
    where->download(memory.data(), t.pointer, memory.size());
    for (index_t i = 0; i < t.size(); ++i) {
      std::byte* const at =
          memory.data() + element_offset(t.extents, t.stride, 0, t.extents.order, i) * size_of(t.type);
      bytes.insert(bytes.end(), at, at + size);
      std::fill_n(at, size, std::byte{0xff});
    }
    CHECK(std::count(memory.begin(), memory.end(), std::byte{0xff}) ==
          static_cast<std::ptrdiff_t>(memory.size()));
    return oracle::decoded(t.type, t.extents, bytes.data());
  }

 private:
  device where;
  std::vector<buffer> memory;
  std::vector<std::vector<std::byte>> contents;
};

/// Roughly normally distributed numbers, rounded to the type.
oracle::array drawn(dtype type, const shape& extents, std::uint32_t seed, double scale = 1) {
  oracle::array x = oracle::zeros(type, extents);
  for (std::size_t i = 0; i < x.f.size(); ++i) {
    double sum = -3;
    for (std::uint32_t k = 0; k < 6; ++k) sum += unit_interval(philox_word({seed, k}, i));
    x.f[i] = oracle::rounded(1.4 * scale * sum, type);
  }
  return x;
}

/// Results and derivatives: a device's, exact ones, or bounds of their rounding errors.
struct results {
  oracle::array value, sums;
  std::array<oracle::array, 3> cotangents;
};
struct drawn_operands {
  std::array<oracle::array, 3> of;
  oracle::array g;

  drawn_operands(dtype type, const problem& p) {
    const shape q{4, {2, p.positions[0], p.heads[0], p.features}},
        k{4, {2, p.positions[1], p.heads[1], p.features}};
    of = {drawn(type, q, 1, p.scale), drawn(type, k, 2), drawn(type, k, 3)};
    g = drawn(type, q, 4);
  }
};

results computed(const device& d, const problem& p, bool hides, const drawn_operands& x) {
  on_device m(d);
  const dtype type = x.g.type;
  const order out = p.stored == order::one_off ? p.stored : order::in_order;
  const shape &of_q = x.of[0].extents, &of_k = x.of[1].extents;
  const strided q = m.put(x.of[0], p.stored), k = m.put(x.of[1], p.stored), v = m.put(x.of[2], p.stored),
                g = m.put(x.g, p.stored), y = m.place(type, of_q, out),
                sums = m.place(dtype::f32, {3, {of_q[0], of_q[2], of_q[1]}}, order::in_order);
  const std::vector<strided> in{q, k, v, y, sums, g}, value{y, sums},
      back{m.place(type, of_q, p.stored), m.place(type, of_k, p.stored), m.place(type, of_k, p.stored)};
  const attributes at{{hides, p.first}, 2};
  d->call_native("attention", {.op = native_op::attention}, {{in.data(), 3}, value, at, 0});
  native_operands backward{in, back, at, 0};
  const native_code code{.op = native_op::attention_backward};
  if (hides) {  // with and without scratch memory
    const auto bytes = static_cast<index_t>(d->native_scratch_bytes(code, backward));
    backward.scratch = m.place(dtype::u8, {1, {bytes}}, order::in_order).pointer;
  }
  d->call_native("attention_backward", code, backward);
  return {m.read(y), m.read(sums), {m.read(back[0]), m.read(back[1]), m.read(back[2])}};
}

/// The formula in double, and for each number a bound of the errors from rounding weights, slopes and the
/// result to the type.
struct formula {
  results exact, bounds;

  formula(const problem& p, bool hides, const drawn_operands& x) {
    const auto& [q, k, v] = x.of;
    const shape &s = q.extents, &of_k = k.extents;
    const bool is_half = q.type == dtype::f16;
    const double eps = oracle::epsilon(q.type) / 2 + 2e-5, least = is_half ? 0x1p-24 : 0x1p-126;
    const double scale = 1 / std::sqrt(static_cast<double>(s[3]));
    exact.value = bounds.value = oracle::zeros(q.type, s);
    exact.sums = bounds.sums = oracle::zeros(dtype::f32, {3, {s[0], s[2], s[1]}});
    exact.cotangents = test::cotangents(hides, p.first, x.of, x.g);
    bounds.cotangents = {oracle::zeros(q.type, s), oracle::zeros(q.type, of_k), oracle::zeros(q.type, of_k)};
    for (index_t b = 0; b < s[0]; ++b)
      for (index_t h = 0; h < s[2]; ++h)
        for (index_t i = 0; i < s[1]; ++i) {
          const auto at = [&](index_t f) {
            return static_cast<std::size_t>(((b * s[1] + i) * s[2] + h) * s[3] + f);
          };
          const auto key = [&](index_t j, index_t f) {
            return static_cast<std::size_t>(((b * of_k[1] + j) * of_k[2] + h * of_k[2] / s[2]) * s[3] + f);
          };
          const index_t seen = hides ? std::min(p.first + i + 1, of_k[1]) : of_k[1];
          std::vector<double> weight(static_cast<std::size_t>(seen)), slope = weight;
          double sum = 0, mean = 0, of_mean = 0;
          for (std::size_t j = 0; j < weight.size(); ++j) {
            for (index_t f = 0; f < s[3]; ++f) {
              weight[j] += q.f[at(f)] * k.f[key(static_cast<index_t>(j), f)] * scale;
              slope[j] += x.g.f[at(f)] * v.f[key(static_cast<index_t>(j), f)];
            }
            sum += weight[j] = std::exp(weight[j]);
          }
          exact.sums.f[static_cast<std::size_t>((b * s[2] + h) * s[1] + i)] = std::log(sum);
          for (std::size_t j = 0; j < weight.size(); ++j) mean += (weight[j] /= sum) * slope[j];
          for (index_t f = 0; f < s[3]; ++f) {
            double &y = exact.value.f[at(f)], &bound = bounds.value.f[at(f)];
            for (std::size_t j = 0; j < weight.size(); ++j) {
              const double of_v = v.f[key(static_cast<index_t>(j), f)];
              y += weight[j] * of_v;
              bound += (eps * weight[j] + least) * std::abs(of_v);
            }
            bound += eps * std::abs(y) + least;
            of_mean += std::abs(x.g.f[at(f)]) * bound;
          }
          for (std::size_t j = 0; j < weight.size(); ++j) {
            const double of_slope = weight[j] * (eps * std::abs(slope[j] - mean) + of_mean + 1e-5) + least;
            for (index_t f = 0; f < s[3]; ++f) {
              const auto other = key(static_cast<index_t>(j), f);
              bounds.cotangents[0].f[at(f)] += of_slope * scale * std::abs(k.f[other]);
              bounds.cotangents[1].f[other] += of_slope * scale * std::abs(q.f[at(f)]);
              bounds.cotangents[2].f[other] += (eps * weight[j] + least) * std::abs(x.g.f[at(f)]);
            }
          }
        }
    for (std::size_t i = 0; i < 3; ++i)
      for (std::size_t e = 0; e < bounds.cotangents[i].f.size(); ++e)
        bounds.cotangents[i].f[e] += eps * std::abs(exact.cotangents[i].f[e]) + least;
    for (std::size_t e = 0; e < bounds.sums.f.size(); ++e)
      bounds.sums.f[e] = 2e-5 * (1 + std::abs(exact.sums.f[e]));
  }
};

/// The largest error in units of its bound; infinite if a number is missing.
double worst(const oracle::array& seen, const oracle::array& exact, const oracle::array& bound) {
  REQUIRE(seen.f.size() == exact.f.size());
  double most = 0;
  for (std::size_t i = 0; i < seen.f.size(); ++i) {
    const double apart = std::abs(seen.f[i] - exact.f[i]), error = apart == 0 ? 0 : apart / bound.f[i];
    most = error <= most ? most : std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
  }
  return most;
}

void check(const device& d, dtype type, const problem& p) {
  CAPTURE(name_of(type));
  CAPTURE(p.features);
  CAPTURE(p.positions[0]);
  CAPTURE(p.positions[1]);
  const drawn_operands x(type, p);
  for (const bool hides : {false, true}) {
    CAPTURE(hides);
    const formula expected(p, hides, x);
    const results seen = computed(d, p, hides, x), again = computed(d, p, hides, x);
    CHECK(worst(seen.value, expected.exact.value, expected.bounds.value) <= 1);
    CHECK(worst(seen.sums, expected.exact.sums, expected.bounds.sums) <= 1);
    CHECK(seen.value.f == again.value.f);
    CHECK(seen.sums.f == again.sums.f);
    for (std::size_t i = 0; i < 3; ++i) {
      CAPTURE(i);
      CHECK(worst(seen.cotangents[i], expected.exact.cotangents[i], expected.bounds.cotangents[i]) <= 1);
      CHECK(seen.cotangents[i].f == again.cotangents[i].f);
    }
  }
  CHECK(fake_cuda::misuse() == "");
}

}  // namespace

TEST_CASE(
    "attention on tensor cores: sizes, lengths, groups and positions, to the rounding of weights, twice") {
  for (const char* capability : {"8", "9"})
    for (const dtype type : {dtype::bf16, dtype::f16}) {
      const device d = nvidia(capability);
      check(d, type, {{5, 5}, {2, 2}, 1});
      check(d, type, {{70, 70}, {1, 1}, 16});
      check(d, type, {{100, 40}, {4, 2}, 60});
      check(d, type, {{130, 130}, {2, 1}, 64});
      check(d, type, {{3, 200}, {3, 1}, 64, 197});
      check(d, type, {{65, 65}, {1, 1}, 80});
      check(d, type, {{33, 97}, {2, 2}, 128, 64});
      check(d, type, {{1, 1}, {1, 1}, 128});
      check(d, type, {{3, 9}, {1, 1}, 128, 0, order::in_order, 40});  // sums of exponentials far from 1
    }
}

TEST_CASE("attention on tensor cores: without keys results are 0, and without queries cotangents are") {
  const device d = nvidia();
  for (const std::array<index_t, 2> positions : {std::array<index_t, 2>{3, 0}, {0, 3}}) {
    const problem p{positions, {2, 1}, 64};
    const results seen = computed(d, p, true, drawn_operands(dtype::bf16, p));
    for (const auto* x : {&seen.value, &seen.cotangents[0], &seen.cotangents[1], &seen.cotangents[2]})
      CHECK(x->f == std::vector<double>(x->f.size(), 0));
    CHECK(seen.sums.f == std::vector<double>(seen.sums.f.size(), -std::numeric_limits<double>::infinity()));
  }
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("attention on tensor cores: operands anywhere in memory") {
  for (const char* capability : {"8", "9"})
    for (const order how : {order::heads_first, order::parts_of_rows, order::one_off, order::every_second}) {
      CAPTURE(static_cast<int>(how));
      const device d = nvidia(capability);
      check(d, dtype::bf16, {{66, 70}, {2, 1}, 64, 4, how});
      check(d, dtype::f16, {{20, 70}, {2, 2}, 24, 50, how});
    }
}

TEST_CASE("tensor cores compute attention of bf16 and f16 on devices that have them, up to 128 features") {
  const auto takes = [](const device& d, dtype type, index_t features) {
    const long before = fake_cuda::calls("cuFuncSetAttribute");
    check(d, type, {{7, 7}, {1, 1}, features});
    return fake_cuda::calls("cuFuncSetAttribute") > before;
  };
  const device has_them = nvidia("8"), has_none = nvidia("7");
  CHECK(takes(has_them, dtype::bf16, 128));
  CHECK(takes(has_them, dtype::f16, 8));
  CHECK_FALSE(takes(has_none, dtype::bf16, 128));
  CHECK_FALSE(takes(has_none, dtype::f16, 8));
}
