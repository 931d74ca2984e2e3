// SPDX-License-Identifier: MIT
// Building blocks of CPU kernels: types of registers, and loads, stores, casts and reductions on vectors.
//
// A register holds one element of a row or a vector of elements; its element type is the type of computation
// (`register_type`), not that in memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <weft/device/kernel.hpp>
#include <weft/device/math.hpp>
#include <weft/device/storage.hpp>
#include <weft/lower/code.hpp>
#include <weft/op/all.hpp>

namespace weft::lower {
inline namespace WEFT_ISA {

namespace vector_code {

/// The C++ type of a register of register type T.
template <dtype T> struct register_of;
template <> struct register_of<dtype::f64> { using type = double; };
template <> struct register_of<dtype::f32> { using type = float; };
template <> struct register_of<dtype::i64> { using type = std::int64_t; };
template <> struct register_of<dtype::i32> { using type = std::int32_t; };
template <> struct register_of<dtype::boolean> { using type = std::int32_t; };  // a mask

/// The decoded instructions of a code, in parts: row instructions, sweep 0, row instructions, sweep 1, ...,
/// row instructions. A sweep runs over the elements of a row; its folds reduce the row to one value each.
template <int Count>
struct parsed_code {
  instruction instructions[std::size_t{Count}]{};
  bool is_data[std::size_t{Count}]{};
  static constexpr std::size_t most_sweeps = Count / 2 + 1;  // a sweep has two words of its own
  int sweep_begin[most_sweeps]{}, sweep_end[most_sweeps]{};
  int sweeps = 0;
  int fold[std::size_t{Count}]{};     // the instructions that are folds
  int fold_begin[most_sweeps + 1]{};  // the first fold of each sweep
  int column_fold[std::size_t{Count}]{};  // the instructions that fold columns
  int column_folds = 0;
  bool wide = false;                  // computes with 64-bit lanes

  constexpr explicit parsed_code(const std::array<std::uint64_t, std::size_t{Count}>& encoded) {
    int folds = 0;
    for (int i = 0; i < Count; ++i) {
      instructions[i] = instruction::decoded(encoded[static_cast<std::size_t>(i)]);
      const auto op = instructions[i].op;
      if (op == opcode::sweep) sweep_begin[sweeps] = i + 1;
      if (op == opcode::end) {
        sweep_end[sweeps++] = i;
        fold_begin[sweeps] = folds;
      }
      if (is_row_fold(instructions[i])) fold[folds++] = i;
      if (is_column_fold(instructions[i])) column_fold[column_folds++] = i;
      const bool in_sweep = sweep_begin[sweeps] > 0;
      wide = wide || instructions[i].type == dtype::f64 || (in_sweep && instructions[i].type == dtype::i64);
      if (op == opcode::constant) is_data[++i] = true;
    }
  }

  /// The row instructions before sweep `s`, or after the last one for s = sweeps.
  constexpr int rows_begin(int s) const { return s == 0 ? 0 : sweep_end[s - 1] + 1; }
  constexpr int rows_end(int s) const { return s == sweeps ? Count : sweep_begin[s] - 1; }
};

/// Storage of register I.
template <int I, class T>
struct slot {
  T value;
};
/// Register I of a register file that derives from its slots.
template <int I, class T>
WEFT_INLINE T& get(slot<I, T>& s) {
  return s.value;
}

/// The element at `p` as a lane of a register.
template <class T, class R>
WEFT_INLINE R lane_of(const T* p) {
  if constexpr (std::is_same_v<T, bool>) return *p ? -1 : 0;
  else return static_cast<R>(*p);
}

/// Loads `n` contiguous elements; the remaining lanes are zero.
template <class T, class V>
WEFT_INLINE V load_contiguous(const T* p, index_t n) {
  constexpr int lanes = simd::lane_count<V>;
  using R = simd::lane<V>;
  if constexpr (std::is_same_v<T, bool>) {
    return -simd::load_bytes<V>(reinterpret_cast<const std::uint8_t*>(p), n);
  } else if constexpr (std::is_same_v<T, std::uint8_t>) {
    return simd::load_bytes<V>(p, n);
  } else if constexpr (is_storage_type<T>) {
    return simd::load_stored<V>(p, n);
  } else {
    const auto raw = simd::load_some<simd::vec<T, lanes>>(p, n);
    if constexpr (std::is_same_v<T, R>) return raw;
    else return __builtin_convertvector(raw, V);
  }
}

/// Loads `n` elements at stride `stride`; the remaining lanes are zero. A function, because kernels have many
/// loads.
template <class T, class V>
[[gnu::noinline]] V load_strided(const T* p, index_t stride, index_t n) {
  constexpr int lanes = simd::lane_count<V>;
  using R = simd::lane<V>;
  if (stride == 0) return simd::first_lanes<V>(simd::splat<V>(lane_of<T, R>(p)), V{}, n);
  if (n == lanes && stride == -1) return simd::reversed(load_contiguous<T, V>(p - (lanes - 1), lanes));
  if (n == lanes)
    return [&]<int... I>(std::integer_sequence<int, I...>) {
      return V{lane_of<T, R>(p + I * stride)...};
    }(std::make_integer_sequence<int, lanes>{});
  using M = simd::mask_of<V>;
  V v{};
  for (index_t i = 0; i < n; ++i)  // in registers: memory written by element and read as a vector is slow
    v = simd::select(simd::equal(simd::iota<M>(), simd::splat<M>(static_cast<simd::lane<M>>(i))),
                     simd::splat<V>(lane_of<T, R>(p + i * stride)), v);
  return v;
}

/// The same, inlined where the stride is 1.
template <class T, class V>
WEFT_INLINE V load_as(const T* p, index_t stride, index_t n) {
  if constexpr (simd::lane_count<V> == 1) return lane_of<T, simd::lane<V>>(p);
  else return stride == 1 ? load_contiguous<T, V>(p, n) : load_strided<T, V>(p, stride, n);
}

/// Stores the first `n` lanes to contiguous memory.
template <class T, class V>
WEFT_INLINE void store_as(T* p, V v, index_t n) {
  constexpr int lanes = simd::lane_count<V>;
  if constexpr (lanes == 1) {
    *p = static_cast<T>(v);
  } else if constexpr (std::is_same_v<T, bool>) {
    const auto bytes = __builtin_convertvector(-v, simd::vec<std::uint8_t, lanes>);
    simd::store_some(reinterpret_cast<std::uint8_t*>(p), bytes, n);
  } else if constexpr (is_storage_type<T>) {
    simd::store_rounded(p, v, n);
  } else if constexpr (std::is_same_v<T, simd::lane<V>>) {
    simd::store_some(p, v, n);
  } else {
    simd::store_some(p, __builtin_convertvector(v, simd::vec<T, lanes>), n);
  }
}

/// Floats converted to integers in [Low, High], like `converted` in base/dtype.hpp.
template <class R, R Low, R High, class V>
WEFT_INLINE simd::rebind<V, R> truncated(V v) {
  using F = simd::lane<V>;
  using I = simd::rebind<V, R>;
  if constexpr (Low == 0) {  // High is a float, too: NaN becomes the bound it is compared with first
    return simd::convert<R>(simd::lesser(simd::greater(v, V{}), simd::splat<V>(F{High})));
  } else {
    constexpr F end = static_cast<F>(High / 2 + 1) * 2;
    const auto above = simd::less_equal(simd::splat<V>(end), v), is_number = simd::equal(v, v);
    if constexpr (simd::truncates_to_lowest<V, R>) return (simd::truncated_or_lowest(v) ^ above) & is_number;
    const auto below = simd::less_equal(v, simd::splat<V>(static_cast<F>(Low)));
    const V inside = simd::select(below | above | ~is_number, V{}, v);
    const I high = simd::select(above, simd::splat<I>(High), simd::convert<R>(inside));
    return simd::select(below, simd::splat<I>(Low), high);
  }
}

/// A register of type From converted to type To, like `converted` in base/dtype.hpp, for vectors.
template <dtype From, dtype To, class V>
WEFT_INLINE auto cast_register(V v) {
  using R = typename register_of<register_type(To)>::type;
  if constexpr (From == dtype::boolean && To == dtype::boolean) return v;
  else if constexpr (From == dtype::boolean) return simd::convert<R>(-v);
  else if constexpr (To == dtype::boolean) return static_cast<simd::mask_of<V>>(~simd::equal(v, V{}));
  else if constexpr (is_narrow(To)) return simd::rounded_to<element_of<To>>(simd::convert<float>(v));
  else if constexpr (To == dtype::u8 && is_floating(From)) return truncated<R, 0, 255>(v);
  else if constexpr (To == dtype::u8) return static_cast<simd::rebind<V, R>>(simd::convert<R>(v) & 255);
  else if constexpr (!is_floating(To) && is_floating(From))
    return truncated<R, std::numeric_limits<R>::min(), std::numeric_limits<R>::max()>(v);
  else return simd::convert<R>(v);
}

/// A number of the graph in a register of type T.
template <dtype T>
constexpr auto number_register(any_number n) {
  using R = typename register_of<register_type(T)>::type;
  if constexpr (T == dtype::boolean) return static_cast<R>(n.bits ? -1 : 0);
  else return n.as<R>();
}

/// The reduction Op (0 sum, 1 maximum, 2 minimum) of `total` and another value; for maximum and minimum, NaN
/// if either is NaN.
template <int Op, class V>
WEFT_INLINE V fold_two(V total, V x) {
  if constexpr (Op == 0) return simd::sum(total, x);
  else if constexpr (Op == 1) return simd::maximum(x, total);
  else return simd::minimum(x, total);
}
/// The neutral element of the reduction Op.
template <int Op, class R>
constexpr R fold_neutral() {
  if constexpr (Op == 0) return R{};
  else if constexpr (std::numeric_limits<R>::has_infinity)
    return Op == 1 ? -std::numeric_limits<R>::infinity() : std::numeric_limits<R>::infinity();
  else return Op == 1 ? std::numeric_limits<R>::lowest() : std::numeric_limits<R>::max();
}

}  // namespace vector_code

}  // namespace WEFT_ISA
}  // namespace weft::lower
