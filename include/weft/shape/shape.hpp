// SPDX-License-Identifier: MIT
// Shapes as plain values: an order and its extents.
//
// One struct serves three readers. In the type system an extent is a number or `dyn`. In the graph
// it is a number or a symbol (a negative number that shape/symbols.hpp gives a meaning). At run
// time it is a number.
#pragma once

#include <string>

#include <weft/base/config.hpp>
#include <weft/base/dtype.hpp>

namespace weft {

/// An extent that is known only at run time.
inline constexpr index_t dyn = -1;

/// Tensors have at most this many dimensions.
inline constexpr int max_order = 6;

struct shape {
  int order = 0;
  index_t extent[max_order]{};

  constexpr bool operator==(const shape&) const = default;
  constexpr index_t operator[](int dim) const { return extent[dim]; }
  constexpr index_t& operator[](int dim) { return extent[dim]; }
  constexpr index_t last() const { return order ? extent[order - 1] : 1; }
  constexpr void append(index_t e) { extent[order++] = e; }

  /// Extent of `dim` counted from the right, 1 beyond the left end: how broadcasting aligns.
  constexpr index_t from_right(int dim) const { return dim < order ? extent[order - 1 - dim] : 1; }

  /// Number of elements; all extents must be numbers.
  constexpr index_t size() const {
    index_t n = 1;
    for (int i = 0; i < order; ++i) n *= extent[i];
    return n;
  }

  constexpr bool is_static() const {
    for (int i = 0; i < order; ++i)
      if (extent[i] < 0) return false;
    return true;
  }
};

/// What is known of a value without computing it: element type and shape.
struct form {
  dtype type = dtype::f32;
  shape extents{};
  constexpr bool operator==(const form&) const = default;
};

/// "[32, 784]"; extents that are not numbers print as "?".
inline std::string to_string(const shape& s) {
  std::string text = "[";
  for (int i = 0; i < s.order; ++i) {
    if (i) text += ", ";
    text += s[i] < 0 ? "?" : std::to_string(s[i]);
  }
  return text + "]";
}

/// Dim counted from the right when negative, as in PyTorch. `order` itself if out of range.
constexpr int normalized_dim(index_t dim, int order) {
  const index_t d = dim < 0 ? dim + order : dim;
  return d < 0 || d >= order ? order : static_cast<int>(d);
}

}  // namespace weft
