// SPDX-License-Identifier: MIT
// Boxes: parts of a tensor, given by an offset and an extent in every dim, such as a run of rows or of
// columns.
//
//   const box rows{{2, {4, 0}}, {2, {2, 8}}};      // rows 4 and 5 of a tensor [10, 8]
//   for_each_run(rows, whole_box({2, {10, 8}}), [](index_t at, index_t in_whole, index_t count) { ... });
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include <weft/shape/shape.hpp>

namespace weft {

/// A box; offset and extents have the same order. Its elements, if stored on their own, are row-major.
struct box {
  shape offset, extents;

  constexpr bool operator==(const box&) const = default;
  constexpr index_t size() const { return extents.size(); }
};

/// The box of all elements.
constexpr box whole_box(const shape& s) { return {{s.order, {}}, s}; }

/// Whether all of `b` is inside a tensor of shape `whole`. Offsets and extents may be any numbers.
constexpr bool is_within(const box& b, const shape& whole) {
  if (b.offset.order != whole.order || b.extents.order != whole.order) return false;
  for (int d = 0; d < whole.order; ++d)
    if (b.offset[d] < 0 || b.extents[d] < 0 || b.extents[d] > whole[d] ||
        b.offset[d] > whole[d] - b.extents[d])
      return false;
  return true;
}

/// The elements that are in both boxes of one tensor; of size 0 if there are none.
constexpr box intersection(const box& a, const box& b) {
  box c = a;
  for (int d = 0; d < a.offset.order; ++d) {
    const index_t end = std::min(a.offset[d] + a.extents[d], b.offset[d] + b.extents[d]);
    c.offset[d] = std::max(a.offset[d], b.offset[d]);
    c.extents[d] = std::max<index_t>(end - c.offset[d], 0);
  }
  return c;
}

/// "[4:6, 0:8]", first index and the index after the last in every dim.
[[gnu::cold]] std::string to_string(const box& b);

/// A box and where its elements are: in a row-major tensor of shape `in`, beginning at index `at`.
struct stored_box {
  box where;
  shape in, at;

  /// Stored on its own.
  constexpr stored_box(const box& b) : where(b), in(b.extents), at{b.extents.order, {}} {}
  constexpr stored_box(const box& b, const shape& s, const shape& begin) : where(b), in(s), at(begin) {}
};

/// Calls f(index in a, index in b, count) for the elements that are in both boxes, in ascending order: runs
/// that are contiguous in what each of them is stored in.
template <class F>
void for_each_run(const stored_box& a, const stored_box& b, F f) {
  const box both = intersection(a.where, b.where);
  if (both.size() == 0) return;
  int outer = both.offset.order;  // dims from `outer` on form a run
  index_t count = 1;
  for (bool whole = true; whole && outer > 0;) {
    --outer;
    count *= both.extents[outer];
    whole = both.extents[outer] == a.in[outer] && both.extents[outer] == b.in[outer];
  }
  const auto index_in = [&](const stored_box& s, const shape& at) {
    index_t i = 0;
    for (int d = 0; d < at.order; ++d)
      i = i * s.in[d] + (both.offset[d] + at[d] - s.where.offset[d] + s.at[d]);
    return i;
  };
  shape at{both.offset.order, {}};
  for (int d = 0; d >= 0;) {
    f(index_in(a, at), index_in(b, at), count);
    for (d = outer - 1; d >= 0 && ++at[d] == both.extents[d]; --d) at[d] = 0;
  }
}

/// Calls f(box) for boxes that together are a tensor of shape `whole`, in the order of its elements. Each has
/// at most `most` elements, at least 1, and is contiguous in the tensor.
template <class F>
void for_each_slab(const shape& whole, index_t most, F f) {
  if (whole.size() == 0) return;
  int along = whole.order;  // the dim that is divided; those before have extent 1 in a slab
  index_t row = 1;
  while (along > 0 && row * whole[along - 1] <= most) row *= whole[--along];
  if (along == 0) return f(whole_box(whole));
  --along;
  const index_t rows = most / row;
  box slab = whole_box(whole);
  for (int d = 0; d < along; ++d) slab.extents[d] = 1;
  for (int d = along; d >= 0;) {
    slab.extents[along] = std::min(rows, whole[along] - slab.offset[along]);
    f(slab);
    slab.offset[along] += slab.extents[along];
    for (d = along; d >= 0 && slab.offset[d] == whole[d]; --d) {
      slab.offset[d] = 0;
      if (d > 0) ++slab.offset[d - 1];
    }
  }
}

/// Why boxes are no tiling: elements that are in none of them, or in two.
struct tiling_fault {
  box where;
  bool missing = false;
  std::size_t first = 0, second = 0;  // the two boxes, by index, unless elements are missing
};

namespace detail {

/// A box whose elements count `sign` times. The sum of several boxes changes at their corners only, and what
/// changes at a corner is the sum there if it is 0 at all elements before.
struct signed_box {
  const box* of;
  int sign;
};
/// The first element at which the sum of `boxes` is not 0, and that sum; 0 if there is none. Sets the
/// coordinates of dims from `dim` on. The boxes have elements.
index_t first_sum(const std::vector<signed_box>& boxes, int dim, shape& at);

/// `from`, an element that is in none of the boxes, and as many after it, along the last dim first.
box grown(box from, const std::vector<box>& boxes, const shape& whole);

}  // namespace detail

/// The fault of the first element if `boxes`, which are within `whole`, do not have each element exactly
/// once. Boxes of size 0 do not count. Takes the time of sorting them, up to twice that for each dim; memory
/// is linear.
std::optional<tiling_fault> find_tiling_fault(const std::vector<box>& boxes, const shape& whole);

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/shape/impl/box.ipp>
#endif
