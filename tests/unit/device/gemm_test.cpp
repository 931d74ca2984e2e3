// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include <weft/base/philox.hpp>
#include <weft/device/cpu/product.hpp>

#include "../../compare.hpp"

using namespace weft;

namespace {
/// Compares the product with sums in double, within `rounding` and `tolerance`.
template <class T, class Out>
test::comparison product_matches(const cpu::gemm_size& size, int form, bool add, double rounding,
                                 double tolerance) {
  const auto [m, n, k] = size;
  executor threads(2);
  std::vector<T> a(static_cast<std::size_t>(2 * m * std::max<index_t>(k, 1) + 1));
  std::vector<T> b(static_cast<std::size_t>(2 * std::max<index_t>(k, 1) * n));
  std::vector<Out> c(static_cast<std::size_t>(m * n), Out(7));
  const auto fill = [](std::vector<T>& v, index_t used, philox_key key) {  // the rest must not be read
    for (std::size_t i = 0; i < v.size(); ++i)
      v[i] = static_cast<index_t>(i) < used ? T(unit_interval(philox_word(key, i)) - 0.5f)
                                            : T(std::numeric_limits<float>::quiet_NaN());
  };
  fill(a, m % 2 + m * k * (form == 3 ? 2 : 1), {1, 2});
  fill(b, k * n * (form == 4 ? 2 : 1), {3, 4});
  cpu::matrix<T> x{a.data() + m % 2, k, 1}, y{b.data(), n, 1};
  if (form == 1) y = {b.data(), 1, k};
  if (form == 2) x = {a.data(), 1, m};
  if (form == 3) x = {a.data(), 2 * k, 2};
  if (form == 4) y = {b.data(), 2 * n, 2};
  cpu::multiply(size, x, y, cpu::result_matrix<Out>{c.data(), n, add}, threads);
  std::vector<double> sums;
  for (index_t i = 0; i < m; ++i)
    for (index_t j = 0; j < n; ++j) {
      double sum = add ? 7 : 0;
      for (index_t p = 0; p < k; ++p)
        sum += double(x.data[i * x.row + p * x.column]) * double(y.data[p * y.row + j * y.column]);
      sums.push_back(sum);
    }
  return test::matches(std::vector<double>(c.begin(), c.end()), sums,
                       {.absolute = tolerance, .relative = rounding});
}

template <class T, class Out = T>
void check_sizes(double tolerance, double rounding = 0) {
  const index_t sizes[] = {1, 2, 3, 4, 5, 6, 7, 16, 33, 64, 65, 130};
  const auto check = [&](const cpu::gemm_size& size, int form, bool add) {
    CAPTURE(size.m); CAPTURE(size.n); CAPTURE(size.k); CAPTURE(form); CAPTURE(add);
    CHECK(product_matches<T, Out>(size, form, add, rounding, tolerance));
  };
  std::uint64_t n = 0;
  for (index_t m : sizes)
    for (index_t k : {0, 1, 17, 96, 520, 1030, 1056})
      for (int form = 0; form < 5; ++form, ++n)
        check({m, sizes[(2 * n + n / 5) % std::size(sizes)], k}, form, n % 3 == 0);
  // More rows, or columns of a transposed B, than the L2 cache holds, with K in one part and in several.
  for (index_t k : {index_t{700}, index_t{1700}}) {
    for (int form = 0; form < 5; ++form) check({600, form == 0 ? 50 : 9, k}, form, form % 2 == 1);
    for (bool add : {false, true}) check({51, 600, k}, 1, add);
  }
}
}  // namespace

TEST_CASE("matmul f32: all tails, strides and transposes") { check_sizes<float>(3e-5); }
TEST_CASE("matmul f64: all tails, strides and transposes") { check_sizes<double>(1e-12); }

TEST_CASE("matmul bf16 and f16: sums in f32, rounded once") {
  check_sizes<bfloat16>(3e-5, 0x1p-8);
  check_sizes<bfloat16, float>(3e-5);
  check_sizes<float16>(3e-5, 0x1p-11);
  check_sizes<float16, float>(3e-5);
}

namespace {

/// Pseudo-random numbers.
class numbers {
 public:
  explicit numbers(std::uint32_t seed) : seed_(seed) {}
  index_t up_to(index_t n) {
    return static_cast<index_t>(philox_word({5, seed_}, next_++) % static_cast<std::uint64_t>(n + 1));
  }
  template <class List>
  index_t of(const List& list) {
    return list[static_cast<std::size_t>(up_to(static_cast<index_t>(std::size(list)) - 1))];
  }

 private:
  std::uint32_t seed_;
  std::uint64_t next_ = 0;
};

/// An operand [batch, rows, columns] of a product, in memory that is otherwise NaN.
template <class T>
struct merged_operand {
  strided t;
  merged_dims dims;
  std::vector<T> memory;
  std::vector<double> elements;  // row-major

  /// `line`: 0 or 1, the contiguous dim of the matrix. Dims may overlap, as those of windows.
  merged_operand(numbers& some, index_t batches, const index_t (&sizes)[2], bool is_merged, int line,
                 bool is_shared) {
    t.type = dtype_of<T>;
    t.extents = {3, {batches, sizes[0], sizes[1]}};
    t.stride[1 + line] = 1;
    t.stride[2 - line] = sizes[line] + (some.up_to(3) == 0);
    index_t last = 0;
    const auto add = [&](merged_dims::side& side, index_t extent, index_t stride) {
      last += (extent - 1) * stride;
      side.extent[side.order] = extent;
      side.stride[side.order++] = stride;
    };
    if (is_merged) {
      const index_t step = 1 + some.up_to(2);
      for (int d = 0; d < 2; ++d) {
        merged_dims::side& side = d == 0 ? dims.rows : dims.columns;
        index_t left = sizes[d];
        for (const index_t parts : {index_t{2}, index_t{3}})
          if (left > parts && left % parts == 0 && some.up_to(1) == 1) {
            add(side, parts, 1 + some.up_to(40));
            left /= parts;
          }
        add(side, left, d == line ? step : 1 + some.up_to(70));
      }
      t.merged = &dims;
    } else {
      for (int d = 0; d < 2; ++d) last += (sizes[d] - 1) * t.stride[1 + d];
    }
    t.stride[0] = is_shared ? 0 : last + 1 + some.up_to(3);
    memory.assign(static_cast<std::size_t>((batches - 1) * t.stride[0] + last + 1),
                  T(std::numeric_limits<float>::quiet_NaN()));
    const auto at = [&](index_t b, index_t i, index_t j) -> T& {
      const auto offset = [&](const merged_dims::side& side, index_t index) {
        index_t o = 0;
        for (int d = side.order; d-- > 0; index /= side.extent[d])
          o += index % side.extent[d] * side.stride[d];
        return o;
      };
      const index_t within =
          is_merged ? offset(dims.rows, i) + offset(dims.columns, j) : i * t.stride[1] + j * t.stride[2];
      return memory[static_cast<std::size_t>(b * t.stride[0] + within)];
    };
    for (int pass = 0; pass < 2; ++pass)
      for (index_t b = 0; b < batches; ++b)
        for (index_t i = 0; i < sizes[0]; ++i)
          for (index_t j = 0; j < sizes[1]; ++j)
            if (pass == 0) at(b, i, j) = T(static_cast<float>(some.up_to(1000)) / 1000 - 0.5f);
            else elements.push_back(static_cast<double>(at(b, i, j)));
    t.pointer = memory.data();
  }
  merged_operand(const merged_operand&) = delete;
};

template <class T, class Out>
void check_merged(double tolerance, double rounding) {
  executor threads(2);
  constexpr index_t extents[] = {1, 2, 6, 12, 30, 54, 60, 132, 294, 600},
                    depths[] = {1, 5, 36, 60, 144, 540, 1100};
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    numbers some(seed);
    const bool joins = some.up_to(2) == 0;  // mostly: products with the same left operand
    const index_t batches = 1 + joins + some.up_to(3 - joins),
                  k = joins ? 60 + some.up_to(500) : some.of(depths);
    index_t m = joins ? 1 + some.up_to(30) : some.of(extents),
            n = joins ? (some.up_to(1) == 0 ? 1 : 1 + some.up_to(60)) : some.of(extents);
    while (batches * m * n * k > 1'000'000) (m > n ? m : n) /= 2;
    const bool merges_a = !joins && some.up_to(2) == 0, merges_b = some.up_to(1) == 1,
               adds = some.up_to(1) == 1;
    merged_operand<T> a(some, batches, {m, k}, merges_a, static_cast<int>(some.up_to(1)),
                        joins || some.up_to(3) == 0),
        b(some, batches, {k, n}, merges_b, static_cast<int>(joins || some.up_to(2) != 0), some.up_to(4) == 0);
    std::vector<Out> c(static_cast<std::size_t>(batches * m * n), Out(7));
    strided result;
    result.pointer = c.data();
    result.type = dtype_of<Out>;
    result.extents = {3, {batches, m, n}};
    result.adds = adds;
    set_contiguous(result);
    const auto multiply = [&](index_t first, index_t count, Out* to) {
      strided in[] = {a.t, b.t}, out = result;
      for (strided& t : in) t.pointer = t.data<T>() + first * t.stride[0];
      for (strided* t : {&in[0], &in[1], &out}) t->extents[0] = count;
      out.pointer = to;
      cpu::product<T>({{in, {&out, 1}, {}, 0}, threads});
    };
    multiply(0, batches, c.data());
    std::vector<Out> alone(c.size(), Out(7));
    for (index_t p = 0; p < batches; ++p) multiply(p, 1, alone.data() + p * m * n);
    const bool same = std::memcmp(alone.data(), c.data(), c.size() * sizeof(Out)) == 0;
    std::vector<double> sums;
    for (index_t p = 0; p < batches; ++p)
      for (index_t i = 0; i < m; ++i)
        for (index_t j = 0; j < n; ++j) {
          double sum = adds ? 7 : 0;
          for (index_t q = 0; q < k; ++q)
            sum += a.elements[static_cast<std::size_t>((p * m + i) * k + q)] *
                   b.elements[static_cast<std::size_t>((p * k + q) * n + j)];
          sums.push_back(sum);
        }
    CAPTURE(seed);
    CAPTURE(batches);
    CAPTURE(m);
    CAPTURE(n);
    CAPTURE(k);
    CHECK(same);
    CHECK(test::matches(std::vector<double>(c.begin(), c.end()), sums,
                        {.absolute = tolerance, .relative = rounding}));
  }
}

}  // namespace

TEST_CASE(
    "rows and columns merged from dims without a common stride, and products with the same left operand, "
    "f32") {
  check_merged<float, float>(3e-5, 0);
}
TEST_CASE("the same, f64") { check_merged<double, double>(1e-12, 0); }
TEST_CASE("the same, bf16 and f16") {
  check_merged<bfloat16, bfloat16>(3e-5, 0x1p-8);
  check_merged<bfloat16, float>(3e-5, 0);
  check_merged<float16, float16>(3e-5, 0x1p-11);
  check_merged<float16, float>(3e-5, 0);
}

TEST_CASE("vectors of storage types are rounded and widened as elements are") {
  using V = simd::vec<float, 16>;
  const auto check = [](auto type, std::uint32_t from, std::uint32_t to, std::uint32_t step) {
    using T = decltype(type);
    int wrong = 0;
    for (std::uint64_t u = from; u < to; u += 16ull * step) {
      float x[16], back[16];
      T y[16], expected[16];
      for (std::uint32_t l = 0; l < 16; ++l)
        x[l] = std::bit_cast<float>(static_cast<std::uint32_t>(u + l * step));
      simd::store_rounded(y, simd::load<V>(x));
      simd::store(back, simd::load_stored<V>(y));
      for (int l = 0; l < 16; ++l) {
        expected[l] = T(x[l]);
        wrong += y[l].bits != expected[l].bits;
        wrong += std::bit_cast<std::uint32_t>(back[l]) != std::bit_cast<std::uint32_t>(float(y[l]));
      }
    }
    return wrong;
  };
  for (const std::uint32_t sign : {0u, 0x80000000u}) {
    CHECK(check(bfloat16{}, sign, sign + 0x7fffff00u, 977) == 0);
    CHECK(check(float16{}, sign, sign + 0x7fffff00u, 977) == 0);
    CHECK(check(float16{}, sign + 0x32f00000u, sign + 0x39000000u, 31) == 0);  // subnormals and around them
    CHECK(check(float16{}, sign + 0x477f0000u, sign + 0x47800100u, 1) == 0);   // around the largest
    CHECK(check(bfloat16{}, sign + 0x7f7f0000u, sign + 0x7f810000u, 1) == 0);  // infinity and NaN
    CHECK(check(float16{}, sign + 0x7f7f0000u, sign + 0x7f810000u, 1) == 0);
  }
}

TEST_CASE("every half is widened alike in a vector and alone, NaN to a quiet one") {
  using V = simd::vec<float, 16>;
  int wrong = 0;
  for (std::uint32_t u = 0; u < 0x10000u; u += 16) {
    float16 y[16];
    float x[16];
    for (std::uint32_t l = 0; l < 16; ++l) y[l].bits = static_cast<std::uint16_t>(u + l);
    simd::store(x, simd::load_stored<V>(y));
    for (int l = 0; l < 16; ++l) {
      const auto bits = std::bit_cast<std::uint32_t>(x[l]);
      wrong += bits != std::bit_cast<std::uint32_t>(float(y[l]));
      wrong += x[l] != x[l] && !(bits & 0x400000u);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("long sums lose no more than sums of blocks do") {
  constexpr index_t depth = 1'000'003;  // sequential summation: 3e-4
  std::vector<float> a(depth + 40), b(2 * depth + 40), c(400);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = unit_interval(philox_word({1, 2}, i));
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = unit_interval(philox_word({3, 4}, i));
  executor threads(2);
  for (const auto& [m, n] : {std::pair<index_t, index_t>{1, 1}, {3, 1}, {20, 1}, {1, 5}, {2, 20}, {9, 9}})
    for (const auto& [row, column] : {std::pair<index_t, index_t>{1, 1}, {1, 2}, {2, 1}}) {
      CAPTURE(m);
      CAPTURE(n);
      CAPTURE(row);
      CAPTURE(column);
      const cpu::matrix<float> x{a.data(), 1, 1}, y{b.data(), row, column};  // rows that overlap
      cpu::multiply({m, n, depth}, x, y, cpu::result_matrix<float>{c.data(), n}, threads);
      double worst = 0;
      for (index_t i = 0; i < m; i += m - 1 + (m == 1))
        for (index_t j = 0; j < n; j += n - 1 + (n == 1)) {
          double sum = 0;
          for (index_t k = 0; k < depth; ++k) sum += double(a[i + k]) * double(b[k * row + j * column]);
          worst = std::max(worst, std::abs(c[i * n + j] - sum) / sum);
        }
      CHECK(worst < 2e-6);
    }
}

TEST_CASE("matmul: the same bits on one thread and on two") {
  executor serial(1), parallel(2);
  for (const index_t n : {index_t{200}, index_t{1000}}) {
    std::vector<float> a(n * n), b(n * n), one(n * n), two(n * n);
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = b[i] = unit_interval(philox_word({1, 2}, i));
    const cpu::matrix<float> x{a.data(), n, 1};
    for (const cpu::matrix<float>& y :
         {cpu::matrix<float>{b.data(), n, 1}, cpu::matrix<float>{b.data(), 1, n}})
      for (const index_t m : {n, n / 4}) {
        cpu::multiply({m, n, n}, x, y, cpu::result_matrix<float>{one.data(), n}, serial);
        cpu::multiply({m, n, n}, x, y, cpu::result_matrix<float>{two.data(), n}, parallel);
        CHECK(one == two);
      }
  }
}

TEST_CASE("many products at once are the products one by one, on any number of threads") {
  const index_t m = 20, n = 24, k = 40, products = 50;
  std::vector<float> a(products * m * k), b(products * k * n), c(products * m * n), one(m * n);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = unit_interval(philox_word({1, 2}, i));
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = unit_interval(philox_word({3, 4}, i));
  executor serial(1);
  for (int count : {1, 2, 3}) {
    executor threads(count);
    cpu::multiply_each<float, float>(
        {m, n, k}, products,
        [&](index_t i) {
          return cpu::operands_of_product<float>{
              {a.data() + i * m * k, k, 1}, {b.data() + i * k * n, n, 1}, {c.data() + i * m * n, n}};
        },
        threads);
    for (index_t i = 0; i < products; ++i) {
      cpu::multiply({m, n, k}, cpu::matrix<float>{a.data() + i * m * k, k, 1},
                    cpu::matrix<float>{b.data() + i * k * n, n, 1}, cpu::result_matrix<float>{one.data(), n},
                    serial);
      CHECK(std::equal(one.begin(), one.end(), c.begin() + i * m * n));
    }
  }
}
