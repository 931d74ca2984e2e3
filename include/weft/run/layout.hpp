// SPDX-License-Identifier: MIT
// Where the elements of a value lie, once all extents are numbers: views as strides.
#pragma once

#include <weft/device/native.hpp>
#include <weft/lower/plan.hpp>

namespace weft::run {

/// Element (i, j, ...) of the value is element offset + i * stride[0] + ... of its base.
struct layout {
  shape extents{};
  index_t stride[max_order]{};
  index_t offset = 0;
};

inline layout contiguous_layout(const shape& extents) {
  layout l{extents, {}, 0};
  index_t n = 1;
  for (int i = extents.order; i-- > 0;) {
    l.stride[i] = n;
    n *= extents[i];
  }
  return l;
}

namespace detail {

/// Strides for the same elements under extents `to`: runs of dims that lie in memory as one dim
/// are divided anew. False if a run does not divide.
inline bool reshape_strides(const layout& from, const shape& to, index_t* stride) {
  if (to.size() == 0 || from.extents.order == 0) {
    const layout l = contiguous_layout(to);
    std::copy(l.stride, l.stride + max_order, stride);
    return true;
  }
  int v = to.order - 1;
  index_t base = from.stride[from.extents.order - 1], run = 1, divided = 1;
  for (int d = from.extents.order; d-- > 0;) {
    run *= from.extents[d];
    const bool run_ends =
        d == 0 || (from.extents[d - 1] != 1 && from.stride[d - 1] != run * base);
    if (!run_ends) continue;
    for (; v >= 0 && (divided < run || to[v] == 1); --v) {
      stride[v] = divided * base;
      divided *= to[v];
    }
    if (divided != run) return false;
    if (d > 0) base = from.stride[d - 1];
    run = divided = 1;
  }
  return v < 0;
}

}  // namespace detail

/// The layout of a view of `from` with attributes `at` and resulting `extents`.
inline layout view_layout(const layout& from, lower::view_kind kind, const attributes& at,
                          const shape& extents) {
  using lower::view_kind;
  layout l = from;
  l.extents = extents;
  const int order = extents.order;
  if (kind == view_kind::reshape) {
    if (!detail::reshape_strides(from, extents, l.stride))
      throw error("weft: reshape of " + to_string(from.extents) + " to " + to_string(extents) +
                  " cannot be a view");
  } else if (kind == view_kind::permute) {
    for (int i = 0; i < order; ++i) l.stride[i] = from.stride[normalized_dim(at[i], order)];
  } else if (kind == view_kind::expand) {
    for (int i = 0; i < order; ++i) {
      const int f = i - (order - from.extents.order);
      l.stride[i] = f < 0 || (from.extents[f] == 1 && extents[i] != 1) ? 0 : from.stride[f];
    }
  } else if (kind == view_kind::slice) {
    const int dim = static_cast<int>(at[0]);
    l.offset += at[1] * from.stride[dim];
    l.stride[dim] *= at[3];
  } else if (kind == view_kind::flip) {
    const int dim = static_cast<int>(at[0]);
    l.offset += (from.extents[dim] - 1) * from.stride[dim];
    l.stride[dim] = -from.stride[dim];
  }
  return l;
}

}  // namespace weft::run
