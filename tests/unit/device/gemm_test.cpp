// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <weft/base/philox.hpp>
#include <weft/device/cpu/gemm.hpp>

using namespace weft;

namespace {
template <class T>
void check_sizes(double tolerance) {
  executor threads(2);
  const index_t sizes[] = {1, 2, 5, 6, 7, 16, 33, 64, 65, 130};
  std::uint64_t n = 0;
  for (index_t m : sizes)
    for (index_t k : {index_t{0}, index_t{1}, index_t{17}, index_t{520}, index_t{1030}})
      for (int form = 0; form < 5; ++form) {
        const index_t columns = sizes[++n % 10];
        std::vector<T> a(static_cast<std::size_t>(2 * m * std::max<index_t>(k, 1)));
        std::vector<T> b(static_cast<std::size_t>(2 * std::max<index_t>(k, 1) * columns));
        std::vector<T> c(static_cast<std::size_t>(m * columns), T(7));
        for (std::size_t i = 0; i < a.size(); ++i) a[i] = T(unit_interval(philox_word({1, 2}, i)) - 0.5f);
        for (std::size_t i = 0; i < b.size(); ++i) b[i] = T(unit_interval(philox_word({3, 4}, i)) - 0.5f);
        cpu::matrix<T> x{a.data(), k, 1}, y{b.data(), columns, 1};
        if (form == 1) y = {b.data(), 1, k};
        if (form == 2) x = {a.data(), 1, m};
        if (form == 3) x = {a.data(), 2 * k, 2};
        if (form == 4) y = {b.data(), 2 * columns, 2};
        const bool add = n % 3 == 0;
        cpu::multiply<T>({m, columns, k}, x, y, {c.data(), columns}, add, threads);
        double worst = 0;
        for (index_t i = 0; i < m; ++i)
          for (index_t j = 0; j < columns; ++j) {
            double sum = add ? 7 : 0;
            for (index_t p = 0; p < k; ++p)
              sum += double(x.data[i * x.row + p * x.column]) * y.data[p * y.row + j * y.column];
            worst = std::max(worst, std::abs(sum - c[static_cast<std::size_t>(i * columns + j)]));
          }
        CAPTURE(m); CAPTURE(columns); CAPTURE(k); CAPTURE(form);
        CHECK(worst < tolerance);
      }
}
}  // namespace

TEST_CASE("matmul f32: all tails, strides and transposes") { check_sizes<float>(3e-5); }
TEST_CASE("matmul f64: all tails, strides and transposes") { check_sizes<double>(1e-12); }

TEST_CASE("matmul: the same bits on one thread and on two") {
  const index_t n = 200;
  std::vector<float> a(n * n), b(n * n), one(n * n), two(n * n);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = b[i] = unit_interval(philox_word({1, 2}, i));
  executor serial(1), parallel(2);
  cpu::multiply<float>({n, n, n}, {a.data(), n, 1}, {b.data(), n, 1}, {one.data(), n}, false, serial);
  cpu::multiply<float>({n, n, n}, {a.data(), n, 1}, {b.data(), n, 1}, {two.data(), n}, false, parallel);
  CHECK(one == two);
}
