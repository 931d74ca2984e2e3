// SPDX-License-Identifier: MIT
// Random boxes, and the elements of a box, found by checking every element of the tensor.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include <weft/shape/box.hpp>

namespace weft::test {

using random_source = std::mt19937;

inline index_t below(random_source& random, index_t n) {
  return static_cast<index_t>(random() % static_cast<unsigned>(n));
}
inline shape random_shape(random_source& random) {
  constexpr index_t extents[] = {1, 2, 3, 5, 7};
  shape s;
  for (index_t n = below(random, 5); n > 0; --n) s.append(extents[below(random, 5)]);
  if (below(random, 10) == 0 && s.order > 0) s[static_cast<int>(below(random, s.order))] = 0;
  return s;
}
inline box random_box(random_source& random, const shape& whole) {
  box b = whole_box(whole);
  for (int d = 0; d < whole.order; ++d) {
    if (below(random, 2)) continue;  // whole in this dim
    b.offset[d] = below(random, whole[d] + 1);
    b.extents[d] = below(random, whole[d] - b.offset[d] + 1);
  }
  return b;
}

/// For each element of `b`, in row-major order, its index in a tensor of shape `whole`.
inline std::vector<index_t> elements_of(const box& b, const shape& whole) {
  std::vector<index_t> all;
  for (index_t i = 0; i < whole.size(); ++i) {
    bool inside = true;
    index_t rest = i;
    for (int d = whole.order; d-- > 0; rest /= whole[d])
      inside &= rest % whole[d] >= b.offset[d] && rest % whole[d] < b.offset[d] + b.extents[d];
    if (inside) all.push_back(i);
  }
  return all;
}

/// Divides `whole` into boxes: cuts every box in two, `times` times over, at any place, the ends included.
inline void cut(random_source& random, const box& whole, int times, std::vector<box>& to) {
  if (times == 0 || whole.offset.order == 0) return to.push_back(whole);
  const auto d = static_cast<int>(below(random, whole.offset.order));
  box a = whole, b = whole;
  a.extents[d] = below(random, whole.extents[d] + 1);
  b.offset[d] += a.extents[d];
  b.extents[d] -= a.extents[d];
  cut(random, a, times - 1, to);
  cut(random, b, times - 1, to);
}

}  // namespace weft::test
