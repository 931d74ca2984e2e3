// SPDX-License-Identifier: MIT
// Shapes as plain values: the number of dims and their extents.
//
// One struct is used at three stages. In the type system an extent is a number or `dyn`; in the graph, a
// number or a symbol (a negative number, see shape/symbols.hpp); at run time, a number.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>

#include <weft/base/config.hpp>
#include <weft/base/dtype.hpp>
#include <weft/base/error.hpp>

namespace weft {

/// An extent that is known only at run time.
inline constexpr index_t dyn = -1;

/// The maximum number of dims of a tensor.
inline constexpr int max_order = 6;

struct shape;
namespace detail {
[[noreturn, gnu::cold]] void refuse_size(const shape& s);
[[noreturn, gnu::cold]] void refuse_order(int order, std::size_t extents);

/// a + b into `sum`; returns false if it overflows.
constexpr bool add_checked(index_t a, index_t b, index_t& sum) { return !__builtin_add_overflow(a, b, &sum); }
/// a * b into `product`; returns false if it overflows.
constexpr bool multiply_checked(index_t a, index_t b, index_t& product) {
  return !__builtin_mul_overflow(a, b, &product);
}
}  // namespace detail

/// Number of dims, `order`, and the extent of each: shape{2, {32, 784}}.
struct shape {
  int order = 0;
  index_t extent[max_order]{};

  constexpr shape() = default;
  /// Extents that are not given are 0. Throws shape_error if more than `dims` extents or more than max_order
  /// dims are given. A constructor, so that shape{32, 784} or tensor({32, 784}) does not mean 32 dims.
  constexpr shape(int dims, std::initializer_list<index_t> given) : order(dims) {
    if (dims > max_order || static_cast<int>(given.size()) > dims) detail::refuse_order(dims, given.size());
    int i = 0;
    for (const index_t e : given) extent[i++] = e;
  }

  constexpr bool operator==(const shape&) const = default;
  constexpr index_t operator[](int dim) const { return extent[dim]; }
  constexpr index_t& operator[](int dim) { return extent[dim]; }
  constexpr index_t last() const { return order ? extent[order - 1] : 1; }
  constexpr void append(index_t e) { extent[order++] = e; }

  /// The extent of `dim` counted from the right; 1 beyond the left end, as broadcasting aligns shapes.
  constexpr index_t from_right(int dim) const { return dim < order ? extent[order - 1 - dim] : 1; }

  /// Number of elements; all extents must be numbers. Throws shape_error if it is 2^63 or more.
  constexpr index_t size() const {
    index_t n = 1;
    bool fits = true, empty = false;
    for (int i = 0; i < order; ++i) {
      empty |= extent[i] == 0;
      fits &= detail::multiply_checked(n, extent[i], n);
    }
    if (!fits && !empty) detail::refuse_size(*this);
    return empty ? 0 : n;
  }

  constexpr bool is_static() const {
    for (int i = 0; i < order; ++i)
      if (extent[i] < 0) return false;
    return true;
  }
};

/// Static description of a value: element type and shape.
struct tensor_spec {
  dtype type = dtype::f32;
  shape extents{};
  constexpr bool operator==(const tensor_spec&) const = default;
};

/// "[32, 784]"; extents that are not numbers print as "?".
[[gnu::cold]] std::string to_string(const shape& s);

namespace detail {
[[noreturn, gnu::cold]] void refuse_bytes(const shape& s, dtype t);
[[noreturn, gnu::cold]] void refuse_position(const shape& s, int dim, index_t i);
/// Index `i` along dim `dim` as counted from the left; negative indices count from the right.
constexpr index_t checked_position(const shape& s, int dim, index_t i) {
  if (i < -s[dim] || i >= s[dim]) refuse_position(s, dim, i);
  return i < 0 ? i + s[dim] : i;
}
/// The row-major position of the element at indices `at`, one for each dim.
constexpr index_t checked_position(const shape& s, const index_t* at) {
  index_t position = 0;
  for (int d = 0; d < s.order; ++d) position = position * s[d] + checked_position(s, d, at[d]);
  return position;
}
/// Whether tensors of the static shapes `a` and `b` can have equal extents.
constexpr bool can_be_equal(const shape& a, const shape& b) {
  if (a.order != b.order) return false;
  for (int i = 0; i < a.order; ++i)
    if (a[i] >= 0 && b[i] >= 0 && a[i] != b[i]) return false;
  return true;
}
/// Whether every tensor of the static shape `from` is also of the static shape `to`.
constexpr bool includes(const shape& to, const shape& from) {
  if (to.order != from.order) return false;
  for (int i = 0; i < to.order; ++i)
    if (to[i] >= 0 && to[i] != from[i]) return false;
  return true;
}
}  // namespace detail

/// Number of bytes of elements of type `t`. Throws shape_error if it does not fit into 63 bits.
std::size_t bytes_of(const shape& s, dtype t);

/// `dim` as counted from the left; a negative one counts from the right, as in PyTorch. Returns `order` if it
/// is out of range.
constexpr int normalized_dim(index_t dim, int order) {
  const index_t d = dim < 0 ? dim + order : dim;
  return d < 0 || d >= order ? order : static_cast<int>(d);
}

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/shape/impl/shape.ipp>
#endif
