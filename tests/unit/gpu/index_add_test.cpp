// SPDX-License-Identifier: MIT
// Rows that a device adds up by index, against a plain loop; the indices determine the order of additions.
// WEFT_TEST_DEVICE names the device; the default is opencl.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <weft/base/philox.hpp>
#include <weft/device/sorted_rows.hpp>

#include "../../gpu/device_memory.hpp"

using namespace weft;
using test::sent;
using test::tested_device;
using test::view;

namespace {

/// One sum of rows by index: `count` indices of I into `rows` rows of `columns` numbers.
struct sums {
  index_t count, rows, columns;
  std::function<index_t(index_t)> index;
  bool adds = false, turned = false;  // turned: the rows are columns in memory
};

double drawn(index_t i) {
  return static_cast<double>(philox_word({5, 1}, static_cast<std::uint64_t>(i)) % 2001) / 64 - 15;
}

/// Computes the sums on the device, with scratch memory if the device asks for it and `sorts` is set.
template <class T, class I>
std::vector<T> on_device(const device& d, const sums& of, bool sorts = true) {
  std::vector<I> index;
  for (index_t n = 0; n < of.count; ++n) index.push_back(static_cast<I>(of.index(n)));
  std::vector<T> from(static_cast<std::size_t>(of.count * of.columns)), to;
  for (index_t n = 0; n < of.count; ++n)
    for (index_t c = 0; c < of.columns; ++c)
      from[static_cast<std::size_t>(of.turned ? c * of.count + n : n * of.columns + c)] =
          static_cast<T>(static_cast<float>(drawn(n * of.columns + c)));
  for (index_t i = 0; i < of.rows * of.columns; ++i) to.push_back(static_cast<T>(of.adds ? 3.0f : 77.0f));
  const buffer indices = sent(d, index), rows = sent(d, from), result = sent(d, to);
  strided in[] = {view(indices, dtype_of<I>, {1, {of.count}}),
                  view(rows, dtype_of<T>, {2, {of.count, of.columns}})};
  if (of.turned) {
    in[1].stride[0] = 1;
    in[1].stride[1] = of.count;
  }
  strided out = view(result, dtype_of<T>, {2, {of.rows, of.columns}});
  out.adds = of.adds;
  const native_code code{.adds = true, .op = native_op::index_add};
  native_operands operands{in, {&out, 1}, {{of.rows, 0}, 2}};
  const std::size_t bytes = sorts ? (*d).native_scratch_bytes(code, operands) : 0;
  CHECK((bytes > 0) == (sorts && of.count > sorted_rows::least && of.columns > 0));
  const buffer scratch = d.allocate(std::max<std::size_t>(bytes, 1));
  if (bytes > 0) operands.scratch = scratch.data();
  (*d).call_native("index_add", code, operands);
  (*d).download(to.data(), result.data(), to.size() * sizeof(T));
  return to;
}

/// Compares with sums in f64, by a plain loop.
template <class T, class I = std::int32_t>
void check(const sums& of, double of_largest, bool sorts = true) {
  const device* const d = tested_device();
  if (!d) return;
  CAPTURE(of.count);
  CAPTURE(of.rows);
  CAPTURE(of.columns);
  const auto seen = on_device<T, I>(*d, of, sorts);
  std::vector<double> expected(seen.size(), of.adds ? 3.0 : 0.0), sizes(seen.size(), 1.0);
  for (index_t n = 0; n < of.count; ++n)
    for (index_t c = 0; c < of.columns; ++c) {
      const auto at = static_cast<std::size_t>(of.index(n) * of.columns + c);
      const auto x = static_cast<double>(
          static_cast<float>(static_cast<T>(static_cast<float>(drawn(n * of.columns + c)))));
      expected[at] += x;
      sizes[at] += std::abs(x);
    }
  int wrong = 0;
  for (std::size_t i = 0; i < seen.size(); ++i)
    wrong += !(std::abs(static_cast<double>(seen[i]) - expected[i]) <= of_largest * sizes[i]);
  CHECK(wrong == 0);
}

index_t scattered(index_t n, index_t rows) {
  return static_cast<index_t>(philox_word({9, 2}, static_cast<std::uint64_t>(n)) %
                              static_cast<std::uint32_t>(rows));
}

}  // namespace

TEST_CASE("sums of rows by index: more and fewer rows than indices, tiles and chunks that are full and not") {
  for (const index_t count : {0, 1, 32, 33, 64, 65, 128, 1000, 1024, 1025, 3000, 9001})
    for (const index_t rows : {1, 2, 50, 5003})
      check<float>({count, rows, 3, [=](index_t n) { return scattered(n, rows); }}, 1e-6);
}

TEST_CASE("sums of rows by index: an index that fills tiles, runs that end where a tile does, none at all") {
  const auto all = [](index_t count, index_t rows, auto index) {
    check<float>({count, rows, 5, index}, 2e-6);
    check<float>({count, rows, 5, index, true}, 2e-6);
  };
  all(4096, 9, [](index_t) { return index_t{4}; });
  all(4096, 64, [](index_t n) { return n / 64; });                             // runs are tiles
  all(4096, 100, [](index_t n) { return 99 - n / 96; });                       // every other one crosses
  all(1200, 3, [](index_t n) { return n == 700 ? index_t{0} : index_t{2}; });  // long, after a short one
  all(2049, 2, [](index_t n) { return n % 2; });
}

TEST_CASE("sums of rows by index: every type, columns apart in memory, no columns, added to what is there") {
  const auto index = [](index_t n) { return scattered(n, 37); };
  check<double, std::int64_t>({500, 37, 4, index, true}, 1e-13);
  check<float, std::uint8_t>({500, 37, 4, index, false, true}, 1e-6);
  check<float>({500, 37, 129, index, true, true}, 1e-6);
  check<bfloat16>({500, 37, 4, index}, 0x1p-8);
  check<float16>({500, 37, 4, index, true}, 0x1p-10);
  check<std::int32_t>({500, 37, 4, index, true}, 0);
  check<std::int64_t, std::int64_t>({500, 37, 4, index}, 0);
  check<float>({500, 37, 0, index}, 0);
  check<float>({500, 37, 4, index, true}, 1e-6, false);  // without scratch memory
  check<float>({500, 37, 4, index, false}, 1e-6, false);
}

TEST_CASE("sums of rows by index have the same bits each time, and narrow ones are rounded once") {
  const device* const d = tested_device();
  if (!d) return;
  const sums of{5000, 11, 7, [](index_t n) { return scattered(n, 11); }};
  const auto first = on_device<float, std::int32_t>(*d, of);
  for (int round = 0; round < 3; ++round) {
    const auto again = on_device<float, std::int32_t>(*d, of);
    CHECK(std::memcmp(first.data(), again.data(), first.size() * sizeof(float)) == 0);
  }
  const sums ones{3000, 2, 1, [](index_t) { return index_t{1}; }};
  const auto narrow = on_device<bfloat16, std::int32_t>(*d, ones);
  double exact = 0;
  for (index_t n = 0; n < 3000; ++n) exact += static_cast<float>(bfloat16(static_cast<float>(drawn(n))));
  CHECK(std::abs(static_cast<float>(narrow[1]) - exact) <= std::abs(exact) * 0x1p-8);
}

TEST_CASE("sums of rows by index: an invalid index is refused, once") {
  const device* const d = tested_device();
  if (!d) return;
  for (const index_t bad : {index_t{-1}, index_t{6}, index_t{1} << 40, -(index_t{1} << 40)})
    for (const auto& [count, columns] : {std::pair{20, 2}, {200, 2}, {20, 0}, {200, 0}}) {
      CAPTURE(bad);
      CAPTURE(columns);
      const sums of{count, 6, columns, [=](index_t n) { return n == 13 ? bad : n % 6; }};
      std::string said;
      try {
        on_device<float, std::int64_t>(*d, of);
      } catch (const value_error& e) { said = e.what(); }
      CHECK(said == "weft: index_add: an index is out of range");
      const sums fine{count, 6, columns, [](index_t n) { return n % 6; }};
      CHECK_NOTHROW(on_device<float, std::int64_t>(*d, fine));
    }
}
