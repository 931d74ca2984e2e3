// SPDX-License-Identifier: MIT
// Lines that a device sorts, against std::stable_sort. WEFT_TEST_DEVICE names the device; the default is
// opencl.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include <weft/base/philox.hpp>
#include <weft/device/sorted_lines.hpp>

#include "../../gpu/device_memory.hpp"

using namespace weft;
using test::sent;
using test::tested_device;
using test::view;

namespace {

/// Lines of `length` elements, in an array [lines, length]; or [length, lines] in memory if `turned`.
/// `count`: how many positions are asked for, negative: all.
struct sorting {
  index_t lines, length;
  std::function<double(index_t)> element;
  bool descends = false, turned = false;
  index_t count = -1;
};

template <class T>
std::vector<T> elements_of(const sorting& s) {
  std::vector<T> all;
  for (index_t i = 0; i < s.lines * s.length; ++i) all.push_back(static_cast<T>(s.element(i)));
  return all;
}

template <class T>
std::vector<std::int64_t> on_device(const device& d, const sorting& s, bool has_scratch = true) {
  const index_t count = s.count < 0 ? s.length : s.count;
  const std::vector<T> elements = elements_of<T>(s);
  std::vector<std::int64_t> places(static_cast<std::size_t>(s.lines * count), -1);
  const buffer from = sent(d, elements), to = sent(d, places);
  strided in = view(from, dtype_of<T>, {2, {s.lines, s.length}});
  if (s.turned) {
    in.stride[0] = 1;
    in.stride[1] = s.lines;
  }
  const strided out = view(to, dtype::i64, {2, {s.lines, count}});
  const native_code code{.op = native_op::argsort};
  native_operands operands{{&in, 1}, {&out, 1}, {{1, s.descends}, 2}};
  const std::size_t bytes = has_scratch ? (*d).native_scratch_bytes(code, operands) : 0;
  CHECK((bytes > 0) == (has_scratch && s.length >= sorted_lines::least && s.lines > 0));
  const buffer scratch = d.allocate(std::max<std::size_t>(bytes, 1));
  if (bytes > 0) operands.scratch = scratch.data();
  (*d).call_native("argsort", code, operands);
  (*d).download(places.data(), to.data(), places.size() * sizeof(std::int64_t));
  return places;
}

template <class T>
std::vector<std::int64_t> expected(const sorting& s) {
  const std::vector<T> elements = elements_of<T>(s);
  const index_t count = s.count < 0 ? s.length : s.count;
  std::vector<std::int64_t> places;
  for (index_t line = 0; line < s.lines; ++line) {
    const auto at = [&](index_t i) {
      const T x = elements[static_cast<std::size_t>(s.turned ? i * s.lines + line : line * s.length + i)];
      if constexpr (std::is_integral_v<T>) return x;
      else return static_cast<double>(x);
    };
    const auto below = [&](index_t i, index_t j) {
      const auto x = at(i), y = at(j);
      return x < y || (y != y && x == x);
    };
    std::vector<index_t> order(static_cast<std::size_t>(s.length));
    std::iota(order.begin(), order.end(), index_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](index_t i, index_t j) { return s.descends ? below(j, i) : below(i, j); });
    places.insert(places.end(), order.begin(), order.begin() + count);
  }
  return places;
}

template <class T>
void check(const sorting& s) {
  const device* const d = tested_device();
  if (!d) return;
  CAPTURE(s.lines);
  CAPTURE(s.length);
  CAPTURE(name_of(dtype_of<T>));
  CHECK(on_device<T>(*d, s) == expected<T>(s));
}

double drawn(index_t i) {
  return static_cast<double>(philox_word({4, 1}, static_cast<std::uint64_t>(i)) % 200001) / 64 - 1500;
}
/// Few different numbers, both zeros, both infinities and NaN.
double special(index_t i) {
  const double all[] = {0, -0.0, NAN, INFINITY, -INFINITY, 1, -1, -NAN};
  return all[philox_word({4, 2}, static_cast<std::uint64_t>(i)) % 8];
}
double small(index_t i) {
  return static_cast<double>(philox_word({4, 3}, static_cast<std::uint64_t>(i)) % 50);
}

}  // namespace

TEST_CASE("sorting on a device: lines of one chunk and more, full and not, of few elements and of none") {
  for (const index_t length : {1, 511, 512, 1000, 1024, 1025, 2048, 3000, 4097, 40000})
    for (const bool descends : {false, true}) check<float>({3, length, drawn, descends});
  check<float>({0, 600, drawn});
  check<float>({4, 0, drawn});
}

TEST_CASE("sorting on a device: equal elements keep their order, NaN is larger than every number, -0 is 0") {
  for (const index_t length : {100, 2500})
    for (const bool descends : {false, true}) {
      check<float>({2, length, special, descends});
      check<double>({2, length, special, descends});
      check<bfloat16>({2, length, special, descends});
      check<float16>({2, length, special, descends});
      check<float>({2, length, [](index_t) { return 7.0; }, descends});
      check<std::uint8_t>({2, length, small, descends});
      check<std::int32_t>({2, length, drawn, descends});
      check<std::int64_t>({2, length, [](index_t i) { return drawn(i) * 0x1p40; }, descends});
    }
}

TEST_CASE("sorting on a device: lines apart in memory, the first positions alone, without scratch memory") {
  check<float>({5, 1500, drawn, false, true});
  check<float>({5, 1500, special, true, true});
  for (const index_t count : {0, 1, 20, 1500}) {
    check<float>({3, 1500, drawn, true, false, count});
    check<float>({3, 1500, special, false, true, count});
  }
  if (const device* const d = tested_device()) {
    const sorting s{2, 700, special, true};
    CHECK(on_device<float>(*d, s, false) == expected<float>(s));
  }
}
