// SPDX-License-Identifier: MIT
// Copies and matrix products of strided tensors on a device, and their division into parts, against plain
// loops. WEFT_TEST_DEVICE names the device; the default is opencl.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <weft/base/philox.hpp>
#include <weft/gpu/products.hpp>
#include <weft/weft.hpp>

#include "../../gpu/device_memory.hpp"

using namespace weft;
using test::sent;
using test::tested_device;
using test::view;

namespace {

index_t offset_of(const strided& t, index_t i) {
  index_t offset = 0;
  for (int d = t.extents.order; d-- > 0;) {
    offset += i % t.extents[d] * t.stride[d];
    i /= t.extents[d];
  }
  return offset;
}

/// A copy between tensors of the same extents: strides, and positions of the first element.
struct a_copy {
  shape extents;
  std::vector<index_t> from, to;
  index_t from_first = 0, to_first = 0;
};

template <class T>
struct placed {
  buffer memory;
  strided t;
};

template <class T>
strided at(const buffer& memory, const shape& extents, const std::vector<index_t>& stride, index_t first) {
  strided t = view(memory, dtype_of<T>, extents);
  for (std::size_t d = 0; d < stride.size(); ++d) t.stride[d] = stride[d];
  t.pointer = static_cast<T*>(t.pointer) + first;
  return t;
}

/// Copies all pairs in one call, and compares every element of the memory with a plain loop.
template <class T>
void check_copies(const std::vector<a_copy>& copies) {
  const device* const d = tested_device();
  if (!d) return;
  constexpr std::size_t size = 6000;
  std::vector<T> source(size), expected(size, T(3));
  for (std::size_t i = 0; i < size; ++i) source[i] = static_cast<T>(i * 7 % 251);
  const buffer from = sent(*d, source);
  std::vector<buffer> memories;
  std::vector<strided> in, out;
  for (const a_copy& c : copies) {
    memories.push_back(sent(*d, expected));
    in.push_back(at<T>(from, c.extents, c.from, c.from_first));
    out.push_back(at<T>(memories.back(), c.extents, c.to, c.to_first));
  }
  if (in.size() == 1) (*d)->copy(in[0], out[0]);
  else (*d)->copy_together(in, out);
  for (std::size_t k = 0; k < copies.size(); ++k) {
    std::vector<T> seen(size), wanted = expected;
    for (index_t i = 0; i < copies[k].extents.size(); ++i)
      wanted[static_cast<std::size_t>(copies[k].to_first + offset_of(out[k], i))] =
          source[static_cast<std::size_t>(copies[k].from_first + offset_of(in[k], i))];
    (*d)->download(seen.data(), memories[k].data(), size * sizeof(T));
    CAPTURE(k);
    CAPTURE(sizeof(T));
    CHECK(seen == wanted);
  }
}

const std::vector<a_copy>& all_copies() {
  static const std::vector<a_copy> all{
      {{1, {5000}}, {1}, {1}},                        // one line
      {{1, {4999}}, {1}, {1}, 1, 1},                  // from an odd address on
      {{2, {40, 64}}, {100, 1}, {64, 1}},             // a slice of rows
      {{2, {40, 64}}, {102, 1}, {64, 1}, 2, 0},       // rows of another alignment
      {{2, {41, 67}}, {67, 1}, {1, 41}},              // transposed
      {{3, {5, 12, 16}}, {1, 100, 5}, {192, 16, 1}},  // turned
      {{3, {5, 12, 16}}, {192, 16, 1}, {16, 80, 1}},  // rows in another order
      {{2, {30, 8}}, {0, 1}, {8, 1}, 7, 0},           // a row repeated
      {{2, {30, 8}}, {-8, -1}, {8, 1}, 239, 0},       // reversed
      {{1, {1}}, {1}, {1}, 9, 4},
      {{0, {}}, {}, {}, 9, 4},
      {{2, {0, 8}}, {8, 1}, {8, 1}},
      {{6, {2, 3, 2, 3, 2, 4}}, {1, 2, 6, 12, 36, 72}, {144, 48, 24, 8, 4, 1}},
      {{4, {1, 7, 1, 32}}, {5, 64, 9, 2}, {5, 32, 9, 1}},  // every other element
      {{2, {30, 8}}, {8, 1}, {24, 3}, 0, 5},               // to every third element
      {{2, {30, 8}}, {8, 1}, {-24, -3}, 1, 717},           // and from the last one
      {{2, {40, 64}}, {0, 0}, {100, 1}, 3, 6},             // one element to all of a slice
      {{3, {3, 4, 5}}, {4, 1, 0}, {1, -15, 3}, 0, 45},     // repeated along rows
  };
  return all;
}

/// A matrix product of [batch..., m, k] and [batch..., k, n].
struct a_product {
  index_t batch, m, n, k;
  bool a_turned = false, b_turned = false, c_turned = false, repeats = false, adds = false;
  index_t apart = 1;  // elements of a row of a
};

double drawn(std::uint32_t of, index_t i) {
  return static_cast<double>(philox_word({of, 3}, static_cast<std::uint64_t>(i)) % 33) / 8 - 2;
}

/// [batch, rows, columns] over enough memory, with values.
template <class T>
std::pair<std::vector<T>, strided> operand(std::uint32_t seed, index_t batch, index_t rows, index_t columns,
                                           bool turned, index_t apart, bool repeats) {
  strided t;
  t.type = dtype_of<T>;
  t.extents = {3, {batch, rows, columns}};
  t.stride[0] = repeats ? 0 : rows * columns * apart;
  t.stride[1] = turned ? apart : columns * apart;
  t.stride[2] = turned ? rows * apart : apart;
  std::vector<T> memory(static_cast<std::size_t>((repeats ? 1 : batch) * rows * columns * apart));
  for (std::size_t i = 0; i < memory.size(); ++i)
    memory[i] = static_cast<T>(static_cast<float>(drawn(seed, static_cast<index_t>(i))));
  return {std::move(memory), t};
}

template <class T, class R = T>
void check_product(const device& d, const a_product& p, double tolerance) {
  CAPTURE(p.batch);
  CAPTURE(p.m);
  CAPTURE(p.n);
  CAPTURE(p.k);
  auto [a, of_a] = operand<T>(1, p.batch, p.m, p.k, p.a_turned, p.apart, false);
  auto [b, of_b] = operand<T>(2, p.batch, p.k, p.n, p.b_turned, 1, p.repeats);
  auto [c, of_c] = operand<R>(3, p.batch, p.m, p.n, p.c_turned, 1, false);
  of_c.adds = p.adds;
  const buffer there_a = sent(d, a), there_b = sent(d, b), there_c = sent(d, c);
  of_a.pointer = there_a.data();
  of_b.pointer = there_b.data();
  of_c.pointer = there_c.data();
  d->multiply({}, of_a, of_b, of_c);
  std::vector<R> seen(c.size());
  d->download(seen.data(), there_c.data(), seen.size() * sizeof(R));
  const auto element = [](const auto& memory, const strided& t, index_t i, index_t r, index_t s) {
    const auto at = static_cast<std::size_t>(i * t.stride[0] + r * t.stride[1] + s * t.stride[2]);
    return static_cast<double>(static_cast<float>(memory[at]));
  };
  int wrong = 0;
  for (index_t i = 0; i < p.batch; ++i)
    for (index_t r = 0; r < p.m; ++r)
      for (index_t s = 0; s < p.n; ++s) {
        double sum = p.adds ? element(c, of_c, i, r, s) : 0, size = 1;
        for (index_t k = 0; k < p.k; ++k) {
          const double x = element(a, of_a, i, r, k) * element(b, of_b, i, k, s);
          sum += x;
          size += std::abs(x);
        }
        wrong += !(std::abs(element(seen, of_c, i, r, s) - sum) <= tolerance * size);
      }
  CHECK(wrong == 0);
}

/// Sizes around those of tiles, transposed and strided operands, batches, accumulation, for every type.
void check_products(const device& d) {
  for (const index_t size : {1, 15, 16, 17, 31, 33, 65})
    check_product<float>(d, {2, size, 66 - size, size + 3}, 1e-6);
  check_product<float>(d, {1, 0, 5, 4}, 0);
  check_product<float>(d, {1, 5, 0, 4}, 0);
  check_product<float>(d, {1, 5, 6, 0}, 0);
  check_product<float>(d, {0, 5, 6, 3}, 0);
  for (int turned = 0; turned < 8; ++turned)
    for (const index_t size : {20, 70, 130})  // tiles of 32, 64 and 128
      check_product<float>(
          d, {size > 100 ? 32 : 40, size, size - 1, 19, turned % 2 > 0, turned / 2 % 2 > 0, turned > 3},
          1e-6);
  check_product<float>(d, {40, 70, 66, 20, false, false, false, true, true}, 1e-6);
  check_product<float>(d, {3, 30, 33, 20, false, true, false, true, true, 2}, 1e-6);
  check_product<double>(d, {40, 70, 66, 40, true}, 1e-14);
  check_product<bfloat16>(d, {40, 70, 66, 40, false, true}, 0x1p-8);
  check_product<bfloat16, float>(d, {3, 17, 20, 40, false, true}, 1e-6);
  check_product<float16>(d, {3, 40, 20, 40, false, false, false, false, true}, 0x1p-10);
}

#if WEFT_WITH_OPENCL
/// An OpenCL device with other limits.
class limited_groups : public gpu::opencl_backend {
 public:
  explicit limited_groups(gpu::group_limits limits) : limits_(limits) {}

 protected:
  gpu::group_limits limits() const override { return limits_; }

 private:
  gpu::group_limits limits_;
};
#endif

}  // namespace

TEST_CASE("update of views, with values that broadcast") {
  const device* const d = tested_device();
  if (!d) return;
  context c(*d);
  const auto x = generate<float>(extents<dyn, 4, 5>{3}, [](index_t i) { return i; }, *d);
  std::vector<float> expected = x.to_vector();
  const auto set = [&](index_t i, index_t j, index_t k, float value) {
    expected[static_cast<std::size_t>((i * 4 + j) * 5 + k)] = value;
  };
  update(x[1], x[1] * 2, c);
  for (index_t j = 0; j < 4; ++j)
    for (index_t k = 0; k < 5; ++k) set(1, j, k, static_cast<float>(2 * (20 + j * 5 + k)));
  CHECK(x.to_vector() == expected);
  update(flip<1>(slice<2, 0, 5, 2>(x)), from(extents<4, 1>{}, {-1.0f, -2.0f, -3.0f, -4.0f}, *d), c);
  for (index_t i = 0; i < 3; ++i)
    for (index_t j = 0; j < 4; ++j)
      for (index_t k = 0; k < 5; k += 2) set(i, j, k, static_cast<float>(j - 4));
  CHECK(x.to_vector() == expected);
  update(select<1>(x, 3), 0.5, c);
  for (index_t i = 0; i < 3; ++i)
    for (index_t k = 0; k < 5; ++k) set(i, 3, k, 0.5f);
  CHECK(x.to_vector() == expected);
}

TEST_CASE("copies of every element size: lines, slices, turned, repeated, reversed, from any address on") {
  for (const a_copy& c : all_copies()) {
    check_copies<std::uint8_t>({c});
    check_copies<bfloat16>({c});
    check_copies<std::int32_t>({c});
    check_copies<std::int64_t>({c});
  }
}

TEST_CASE("copies in one call: other extents and alignments, more than a launch takes") {
  const auto& all = all_copies();
  check_copies<float>({all[0], all[2]});
  check_copies<float>({all[2], all[1], all[4]});
  check_copies<std::uint8_t>({all[6], all[8], all[11], all[12]});
  std::vector<a_copy> many;
  for (index_t i = 0; i < 45; ++i) many.push_back({{2, {3, 4 + i}}, {50, 1}, {4 + i, 1}, i % 4, 0});
  check_copies<float>(many);
}

TEST_CASE(
    "how a copy is divided: one dim of 16 bytes where it is one line, elements where nothing else fits") {
  const auto form = [](const a_copy& c, std::uintptr_t address) {
    strided from, to;
    from.type = to.type = dtype::f32;
    from.extents = to.extents = c.extents;
    for (std::size_t d = 0; d < c.from.size(); ++d) {
      from.stride[d] = c.from[d];
      to.stride[d] = c.to[d];
    }
    from.pointer = to.pointer = reinterpret_cast<void*>(address);
    return gpu::copy_form(from, to);
  };
  const auto line = form({{3, {4, 6, 8}}, {48, 8, 1}, {48, 8, 1}}, 64);
  CHECK(line.unit == 16);
  CHECK(line.order == 1);
  CHECK(line.size() == 48);
  CHECK(line.narrow);
  CHECK(form({{3, {4, 6, 8}}, {48, 8, 1}, {48, 8, 1}}, 72).unit == 8);
  CHECK(form({{3, {4, 6, 8}}, {48, 8, 1}, {48, 8, 1}}, 68).unit == 4);
  const auto rows = form({{2, {6, 8}}, {20, 1}, {8, 1}}, 64);
  CHECK(rows.order == 2);
  CHECK(rows.unit == 16);
  CHECK(rows.extent[1] == 2);
  CHECK(rows.from[0] == 5);
  CHECK(rows.to[0] == 2);
  CHECK(form({{2, {6, 8}}, {22, 1}, {8, 1}}, 64).unit == 8);
  CHECK(form({{2, {6, 7}}, {20, 1}, {8, 1}}, 64).unit == 4);
  CHECK(form({{2, {6, 8}}, {1, 6}, {8, 1}}, 64).unit == 4);
  CHECK_FALSE(form({{2, {3, index_t{1} << 30}}, {1, 3}, {1, 4}}, 64).narrow);
}

TEST_CASE("products: sizes around tiles, transposed and strided operands, batches, added up, of every type") {
  if (const device* const d = tested_device()) check_products(*d);
}

#if WEFT_WITH_OPENCL
TEST_CASE("products on OpenCL devices with groups of every size") {
  for (const auto& [memory, threads] : {std::pair{65536, 1024}, {32768, 64}, {5000, 1024}, {40000, 16}}) try {
      const device d(
          std::make_shared<limited_groups>(gpu::group_limits{.memory = memory, .threads = threads}));
      CAPTURE(memory);
      CAPTURE(threads);
      if (memory == 65536) check_products(d);
      check_product<float>(d, {40, 70, 66, 40}, 1e-6);
      check_product<double>(d, {2, 70, 66, 40}, 1e-14);
    } catch (const device_error& e) {
      if (tested_device()) throw;
      test::skip("opencl", e.what());
      return;
    }
}
#endif

TEST_CASE("tiles of products: the largest that a group has threads and memory for, if there are enough") {
  using gpu::product_tiles;
  const auto tile = [](index_t m, index_t n, index_t batch, gpu::group_limits limits,
                       dtype type = dtype::f32) {
    const auto by = product_tiles::choose(m, n, batch, type, limits);
    CHECK(by.threads() <= limits.threads);
    CHECK(by.bytes(type) <= limits.memory);
    return by.tile;
  };
  CHECK(tile(4096, 4096, 1, {}) == 128);
  CHECK(tile(1024, 1024, 1, {}) == 64);
  CHECK(tile(512, 512, 1, {}) == 32);
  CHECK(tile(512, 512, 8, {}) == 128);
  CHECK(tile(4096, 4096, 1, {.memory_is_own = false}) == 32);
  CHECK(tile(4096, 4096, 1, {.threads = 128}) == 64);
  CHECK(tile(4096, 4096, 1, {.threads = 63}) == 16);
  CHECK(tile(4096, 4096, 1, {.memory = 16384}) == 64);
  CHECK(tile(4096, 4096, 1, {.memory = 33000}, dtype::f64) == 64);
  CHECK(tile(4096, 4096, 1, {.memory = 34000}, dtype::f64) == 128);
}
