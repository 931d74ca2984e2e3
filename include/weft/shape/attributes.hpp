// SPDX-License-Identifier: MIT
// Attributes: the parameters of an op other than its operands, such as dims, a permutation, bounds, the bits
// of a constant.
//
// In the type of an expression they are a pack, attr<1, 2>; in the graph they are a value.
#pragma once

#include <bit>
#include <concepts>

#include <weft/shape/shape.hpp>

namespace weft {

/// Up to six numbers whose meaning each op defines; those that are extents can be symbols.
struct attributes {
  index_t v[max_order]{};
  int count = 0;

  constexpr bool operator==(const attributes&) const = default;
  constexpr index_t operator[](int i) const { return v[i]; }
  constexpr index_t& operator[](int i) { return v[i]; }
};

/// A number for the height and one for the width; a single number is used for both.
struct height_width {
  index_t height, width;
  template <std::integral Number>
  constexpr height_width(Number both) : height(both), width(both) {}  // NOLINT: implicit
  constexpr height_width(index_t h, index_t w) : height(h), width(w) {}
  constexpr bool operator==(const height_width&) const = default;
  /// Both packed into one attribute of an op; -1, which no law accepts, if one is negative or does not fit.
  constexpr index_t packed() const {
    constexpr index_t most = 0x7fffffff;
    return height < 0 || width < 0 || height > most || width > most ? -1 : height << 32 | width;
  }
  static constexpr height_width of(index_t packed) { return {packed >> 32, packed & 0xffffffff}; }
};

/// Attributes in a type. `dyn` represents a size that the expression holds at run time.
template <index_t... Values>
struct attr {
  static_assert(sizeof...(Values) <= max_order);
  static constexpr attributes value{{Values...}, sizeof...(Values)};
};

/// The extents of `s` as attributes, for ops whose result shape is given.
constexpr attributes extents_attributes(const shape& s) {
  attributes a;
  a.count = s.order;
  for (int i = 0; i < s.order; ++i) a[i] = s[i];
  return a;
}
/// The shape whose extents are the attributes `a`.
constexpr shape shape_of(const attributes& a) {
  shape s;
  for (int i = 0; i < a.count; ++i) s.append(a[i]);
  return s;
}

/// A double as one attribute, by its bits.
constexpr attributes number_bits(double x) {
  return {{std::bit_cast<index_t>(x)}, 1};
}
/// A double as a template argument, by its bits: clang before 18 does not support floating-point ones.
struct number_argument {
  index_t bits;
  constexpr number_argument(double x) : bits(std::bit_cast<index_t>(x)) {}  // NOLINT: implicit
  constexpr operator double() const { return std::bit_cast<double>(bits); }
};

/// The double whose bits are attribute `i`.
constexpr double number_of(const attributes& a, int i = 0) { return std::bit_cast<double>(a[i]); }

}  // namespace weft
