// SPDX-License-Identifier: MIT
// Extents in the type system, static or dynamic per dim.
//
//   extents<dyn, 784>{32}       // batch at run time, features at compile time; {32, 784} too
//   extents<784, 128>{}
#pragma once

#include <concepts>
#include <cstddef>
#include <utility>

#include <weft/base/error.hpp>
#include <weft/shape/shape.hpp>

namespace weft {

namespace detail {
/// Whether the product of the known extents fits into 63 bits.
constexpr bool has_countable_size(shape s) {
  for (int i = 0; i < s.order; ++i)
    if (s[i] == 0) return true;
  index_t n = 1;
  for (int i = 0; i < s.order; ++i)
    if (s[i] > 0 && !multiply_checked(n, s[i], n)) return false;
  return true;
}

/// Not a template, so that its code is not instantiated for each extents type.
[[noreturn, gnu::cold]] inline void refuse_extent(const shape& fixed, int dim, index_t given) {
  refuse<shape_error>({"weft: extents ", fixed, ": dim ", dim, " cannot be ", given});
}
}  // namespace detail

/// The extents of a tensor: static ones are template arguments; dynamic ones are `dyn` there and are given at
/// run time. At most 6 dims. Does not compile if the number of elements does not fit into 63 bits.
template <index_t... Extents>
class extents {
  static_assert(sizeof...(Extents) <= max_order, "weft: a tensor has at most 6 dimensions");
  static_assert(((Extents >= 0 || Extents == dyn) && ...),
                "weft: an extent must be a number of elements, or dyn");

 public:
  static constexpr int order = sizeof...(Extents);
  static constexpr shape static_shape{order, {Extents...}};
  static_assert(detail::has_countable_size(static_shape),
                "weft: the number of elements of these extents does not fit into 64 bits");
  static constexpr int dynamic_count = (0 + ... + (Extents == dyn));

  constexpr extents()
    requires(dynamic_count == 0)
  = default;

  /// From all extents, or from the dynamic ones only. Throws shape_error for a negative extent and for one
  /// that differs from its static value.
  template <class... Sizes>
    requires(sizeof...(Sizes) > 0 &&
             (sizeof...(Sizes) == order || sizeof...(Sizes) == dynamic_count))
  constexpr explicit(sizeof...(Sizes) == 1) extents(Sizes... sizes) {
    static_assert((!std::floating_point<Sizes> && ...), "weft: extents: numbers of elements are integers");
    const index_t given[] = {static_cast<index_t>(sizes)...};
    int next = 0;
    for (int i = 0; i < order; ++i) {
      const bool fixed = static_shape[i] != dyn;
      if (!fixed || sizeof...(Sizes) == order) value_[i] = given[next++];
      if (value_[i] < 0 || (fixed && value_[i] != static_shape[i]))
        detail::refuse_extent(static_shape, i, value_[i]);
    }
  }

  /// Compile-time error: a wrong number of extents.
  template <std::convertible_to<index_t>... Sizes>
    requires(sizeof...(Sizes) != order && sizeof...(Sizes) != dynamic_count)
  constexpr explicit extents(Sizes...) {
    static_assert(sizeof...(Sizes) == dynamic_count,
                  "weft: extents: give a number for each dyn, extents<dyn, 3>{n}, or for each dim, {n, 3}");
  }

  constexpr operator shape() const { return value_; }
  constexpr index_t operator[](int dim) const { return value_[dim]; }

 private:
  shape value_ = static_shape;
};

namespace detail {
template <shape S, class Dims>
struct extents_of_dims;
template <shape S, int... I>
struct extents_of_dims<S, std::integer_sequence<int, I...>> {
  using type = extents<S.extent[I]...>;
};
}  // namespace detail

/// The extents type of a shape that holds numbers and `dyn`.
template <shape S>
struct extents_from : detail::extents_of_dims<S, std::make_integer_sequence<int, S.order>> {};

}  // namespace weft
