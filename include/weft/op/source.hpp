// SPDX-License-Identifier: MIT
// The sources of a graph: leaves, numbers, coordinates.
#pragma once

#include <weft/device/simd.hpp>
#include <weft/op/rule.hpp>

namespace weft::op {

/// A tensor named in the expression; v0 is its number in order of occurrence. v1 to v3, if present: the dim
/// that ranks may divide, its groups and units (shape/placement.hpp).
struct leaf : rule<0> {
  static constexpr auto kind = op_kind::leaf;
  static constexpr auto name = "leaf";
};

/// A number that the expression holds at run time; v0 is its number in order of occurrence.
struct argument : rule<0> {
  static constexpr auto kind = op_kind::constant;
  static constexpr auto name = "argument";
};

/// A number that is part of the graph; v0 holds the bits of a double.
struct constant : rule<0> {
  static constexpr auto kind = op_kind::constant;
  static constexpr auto name = "constant";
};

/// An extent as a number, for means over dynamic dims; v0 is the extent or its symbol.
struct extent_value : rule<0> {
  static constexpr unsigned extents = 0b1;
  static constexpr auto kind = op_kind::constant;
  static constexpr auto name = "extent_value";
};

/// 0, 1, 2, ... along one dim of extent v0.
struct coordinate : rule<0> {
  static constexpr unsigned extents = 0b1;
  static constexpr auto kind = op_kind::elementwise;
  static constexpr auto name = "coordinate";
  static constexpr auto text = "";
};

/// The k-th result of a native op, k = v0.
struct result : rule<0> {
  static constexpr auto kind = op_kind::result;
  static constexpr auto name = "result";
};

/// A contiguous copy of a view.
struct contiguous : primitive<1> {
  static constexpr auto name = "contiguous";
  static constexpr auto text = "a";
  static constexpr bool widens = false;
  template <class V> static WEFT_INLINE V lane(V a) { return a; }
  static constexpr auto vjp(auto g, auto, auto) { return g; }
};

}  // namespace weft::op
