// SPDX-License-Identifier: MIT
// Sorting and running sums along a dim on the CPU.
//
// Elements of all types are compared by 64-bit keys whose unsigned order is theirs, so that one instance of
// the sorting functions serves all types.
#pragma once

#include <bit>

#include <weft/device/cpu/rows.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

namespace detail {

/// A number whose unsigned order is that of elements: NaN is above all numbers, -0 equals 0.
template <element T>
std::uint64_t order_key(T x) {
  constexpr std::uint64_t sign = std::uint64_t{1} << 63;
  if constexpr (is_floating(dtype_of<T>)) {
    const double wide = std::is_same_v<T, double> ? static_cast<double>(x) : static_cast<float>(x);
    if (wide != wide) return ~std::uint64_t{0};
    const auto bits = std::bit_cast<std::uint64_t>(wide == 0 ? 0.0 : wide);
    return bits & sign ? ~bits : bits | sign;
  } else {
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(x)) ^ sign;
  }
}

/// An element to be sorted: its key and its position, which decides between equal keys.
struct keyed {
  std::uint64_t key;
  index_t position;
  bool operator<(const keyed& other) const {
    return key != other.key ? key < other.key : position < other.position;
  }
};

/// Puts the first `count` elements of the sorted line at its beginning.
void sort_first(keyed* line, index_t size, index_t count);

}  // namespace detail

/// in: x; out: the positions along dim v0 of its elements in ascending order, or descending if v1 is 1; as
/// many of them as the result has. Equal elements stay in the order of their positions; NaN is larger than
/// every number.
void argsort(const native_call& call);

/// in: x; out: the sums of the elements up to each position along dim v0, from its end if v1 is 1. Floating
/// elements are summed in f64, others modulo 2^64.
void cumsum(const native_call& call);

}  // namespace WEFT_ISA
}  // namespace weft::cpu

#ifndef WEFT_COMPILED
#include <weft/device/cpu/impl/sort.ipp>
#endif
