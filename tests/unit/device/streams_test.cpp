// SPDX-License-Identifier: MIT
// Results that are larger than the last cache, which are stored past it, have the bits of what is computed in
// parts that are not, at rows of all alignments, and nothing beyond them is written.
#include <doctest/doctest.h>

#include <cstring>

#include <weft/weft.hpp>

using namespace weft;

namespace {

/// The numbers of elements of a whole and of its parts, of which the first is stored past the caches.
const index_t large = cpu::last_cache() / 4 + 12345, small = index_t{1} << 18;

template <class T>
using matrix = tensor<T, extents<dyn, dyn>>;

template <class T>
matrix<T> sample(index_t rows, index_t columns) {
  return generate<T>(extents<dyn, dyn>{rows, columns}, [](index_t i) {
    return static_cast<T>(static_cast<double>(mix(7, static_cast<std::uint64_t>(i)) >> 40) * 0x1p-22 - 2);
  });
}

/// Elements of f(x) that differ from those of f of a few rows of x at a time, and guards around them that
/// changed; the result begins `offset` elements after an aligned address.
template <class T, class F>
index_t differences(index_t rows, index_t columns, index_t offset, F f) {
  const matrix<T> x = sample<T>(rows, columns);
  const T untouched = static_cast<T>(37);
  constexpr index_t around = 64;
  const index_t begin = around + offset, end = begin + rows * columns;
  auto memory = full<T>(extents<dyn>{end + around}, untouched);
  const matrix<T> whole(part_of(*memory.state(), begin, {2, {rows, columns}}));
  update(default_context(), {whole.state()}, f(x));
  index_t wrong = 0;
  const T* const got = memory.data();
  const index_t some = std::max<index_t>(small / columns, 1);
  for (index_t first = 0; first < rows; first += some) {
    const index_t count = std::min(some, rows - first);
    const matrix<T> right = eval(f(matrix<T>(part_of(*x.state(), first * columns, {2, {count, columns}}))));
    wrong += std::memcmp(got + begin + first * columns, right.data(),
                         static_cast<std::size_t>(count * columns) * sizeof(T)) != 0;
  }
  for (index_t i = 0; i < begin; ++i) wrong += got[i] != untouched;
  for (index_t i = end; i < end + around; ++i) wrong += got[i] != untouched;
  return wrong;
}

}  // namespace

TEST_CASE_TEMPLATE("results larger than the last cache", T, float, double) {
  for (const index_t columns : {index_t{1024}, index_t{1001}})
    for (const index_t offset : {index_t{0}, index_t{3}}) {
      CAPTURE(columns);
      CAPTURE(offset);
      const index_t rows = large / columns;
      CHECK(differences<T>(rows, columns, offset, [](const auto& x) { return x * x + T(1); }) == 0);
      CHECK(differences<T>(rows, columns, offset, [](const auto& x) { return softmax(x); }) == 0);
    }
}

TEST_CASE("element types that are stored in another form than computed") {
  CHECK(differences<bfloat16>(large / 1000, 1000, 0, [](const auto& x) { return x + x; }) == 0);
  CHECK(differences<std::int32_t>(large / 1000, 1000, 0, [](const auto& x) { return x * x + x; }) == 0);
}
