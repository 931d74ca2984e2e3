// SPDX-License-Identifier: MIT
// Boxes: parts of a tensor given by an offset and an extent in every dim, such as a run of rows or columns.
//
//   const box rows{{2, {4, 0}}, {2, {2, 8}}};      // rows 4 and 5 of a tensor [10, 8]
//   for_each_run(rows, whole_box({2, {10, 8}}), [](index_t at, index_t in_whole, index_t count) { ... });
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include <weft/shape/shape.hpp>

namespace weft {

/// A box; offset and extents have the same order. Its elements, if stored on their own, are in row-major
/// order.
struct box {
  shape offset, extents;

  constexpr bool operator==(const box&) const = default;
  constexpr index_t size() const { return extents.size(); }
};

/// The box of all elements.
constexpr box whole_box(const shape& s) { return {{s.order, {}}, s}; }

/// Whether `b` lies entirely inside a tensor of shape `whole`. Offsets and extents may be any numbers.
constexpr bool is_within(const box& b, const shape& whole) {
  if (b.offset.order != whole.order || b.extents.order != whole.order) return false;
  for (int d = 0; d < whole.order; ++d)
    if (b.offset[d] < 0 || b.extents[d] < 0 || b.extents[d] > whole[d] ||
        b.offset[d] > whole[d] - b.extents[d])
      return false;
  return true;
}

/// The elements that two boxes of one tensor have in common; a box of size 0 if there are none.
constexpr box intersection(const box& a, const box& b) {
  box c = a;
  for (int d = 0; d < a.offset.order; ++d) {
    const index_t end = std::min(a.offset[d] + a.extents[d], b.offset[d] + b.extents[d]);
    c.offset[d] = std::max(a.offset[d], b.offset[d]);
    c.extents[d] = std::max<index_t>(end - c.offset[d], 0);
  }
  return c;
}

/// "[4:6, 0:8]": the first index and the index after the last one in every dim.
[[gnu::cold]] std::string to_string(const box& b);

/// A box and where its elements are: in a row-major tensor of shape `in`, beginning at index `at`.
struct stored_box {
  box where;
  shape in, at;

  /// A box stored on its own.
  constexpr stored_box(const box& b) : where(b), in(b.extents), at{b.extents.order, {}} {}
  constexpr stored_box(const box& b, const shape& s, const shape& begin) : where(b), in(s), at(begin) {}
};

/// Calls f(index in a, index in b, count) for the elements that are in both boxes, in ascending order, as
/// runs that are contiguous in both storages.
template <class F>
void for_each_run(const stored_box& a, const stored_box& b, F f) {
  const box both = intersection(a.where, b.where);
  if (both.size() == 0) return;
  int outer = both.offset.order;  // dims from `outer` on form one run
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

/// Calls f(box) for boxes that together make up a tensor of shape `whole`, in the order of its elements. Each
/// box has at most `most` elements, at least 1, and is contiguous in the tensor.
template <class F>
void for_each_slab(const shape& whole, index_t most, F f) {
  if (whole.size() == 0) return;
  int along = whole.order;  // the dim that is split; the dims before it have extent 1 in a slab
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

/// Why boxes do not tile a tensor: elements that are in none of them, or in two.
struct tiling_fault {
  box where;
  bool missing = false;
  std::size_t first = 0, second = 0;  // the two boxes, by index, unless elements are missing
};

namespace detail {

/// A box whose elements each count `sign`. The sum over several boxes changes only at their corners, and if
/// it is 0 at all elements before a corner, the change there is the sum itself.
struct signed_box {
  const box* of;
  int sign;
};
/// The first element at which the sum of `boxes` is not 0, and that sum; 0 if there is none. Sets the
/// coordinates of dims from `dim` on. The boxes have elements.
index_t first_sum(const std::vector<signed_box>& boxes, int dim, shape& at);

/// `from`, an element that is in none of the boxes, grown by as many elements after it as possible, along the
/// last dim first.
box grown(box from, const std::vector<box>& boxes, const shape& whole);

}  // namespace detail

/// The first fault if `boxes`, which are within `whole`, do not cover each element exactly once. Boxes of
/// size 0 do not count. Takes up to twice the time of sorting the boxes, per dim, and linear memory.
std::optional<tiling_fault> find_tiling_fault(const std::vector<box>& boxes, const shape& whole);

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/shape/impl/box.ipp>
#endif
