// SPDX-License-Identifier: MIT
// Shape laws shared by several ops, written once for types, graphs and run time.
//
// `Dims` is the arithmetic on extents: static_dims or symbol_table (shape/symbols.hpp).
//
//   static_dims dims;
//   broadcast(dims, {2, {32, 1}}, {1, {784}})   // holds, [32, 784]
#pragma once

#include <weft/shape/symbols.hpp>

namespace weft {

/// The result of a shape law: whether shapes and types fit, and the resulting spec if they do.
struct inferred {
  bool holds = true;
  tensor_spec value{};
  bool types_fit = true;
};

/// NumPy's broadcasting: shapes are aligned at the right, and an extent of 1 is repeated. A dynamic extent is
/// not repeated unless another law has required it to be 1.
template <class Dims>
constexpr inferred broadcast(Dims& dims, const shape& a, const shape& b) {
  inferred result;
  shape& s = result.value.extents;
  s.order = a.order > b.order ? a.order : b.order;
  for (int i = 0; i < s.order; ++i) {
    const index_t x = a.from_right(i), y = b.from_right(i);
    index_t& out = s[s.order - 1 - i];
    if (x == 1) out = y;
    else if (y == 1) out = x;
    else if (!dims.unify(x, y, out, check_kind::equal_in_broadcast)) result.holds = false;
  }
  return result;
}

/// [batch..., M, K] x [batch..., K, N] -> [batch..., M, N]; batch extents broadcast.
template <class Dims>
constexpr inferred matmul_shape(Dims& dims, const shape& a, const shape& b) {
  if (a.order < 2 || b.order < 2) return {false, {}};
  shape batch_a = a, batch_b = b;
  batch_a.order -= 2;
  batch_b.order -= 2;
  inferred result = broadcast(dims, batch_a, batch_b);
  index_t inner = 0;
  if (!dims.unify(a.last(), b[b.order - 2], inner)) result.holds = false;
  result.value.extents.append(a[a.order - 2]);
  result.value.extents.append(b.last());
  return result;
}

/// Whether `e` is an extent: in types, a number or `dyn`.
template <class Dims>
constexpr bool is_extent(index_t e) {
  return !Dims::is_static || e >= dyn;
}

/// Product of extents first to last - 1.
template <class Dims>
constexpr index_t product(Dims& dims, const shape& s, int first, int last) {
  index_t n = 1;
  for (int i = first; i < last; ++i) n = dims.multiply(n, s[i]);
  return n;
}

/// Reshape to `target`, in which one extent may be `dyn` and is inferred; beside an extent of 0 it would be
/// undetermined. In types, `dyn` can also mean an extent given at run time, and there can be several of
/// those.
///
/// Equal extents other than 0 at both ends are removed first, so that reshaping [B, T, C] to
/// [B, T, heads, dyn] divides C by the number of heads and emits no condition on B and T.
template <class Dims>
constexpr inferred reshaped(Dims& dims, const shape& from, shape target) {
  int left = 0, right = 0;
  const auto stays = [](index_t a, index_t b) { return a == b && b != dyn && b != 0; };
  while (left < from.order && left < target.order && stays(from[left], target[left])) ++left;
  while (right < from.order - left && right < target.order - left &&
         stays(from.from_right(right), target.from_right(right)))
    ++right;
  int open = -1;
  bool several = false;
  index_t known = 1;
  for (int i = left; i < target.order - right; ++i) {
    if (!is_extent<Dims>(target[i])) return {false, {}};
    if (target[i] == dyn) {
      if (open >= 0 && !Dims::is_static) return {false, {}};
      several = open >= 0;
      open = i;
    } else {
      known = dims.multiply(known, target[i]);
    }
  }
  const index_t total = product(dims, from, left, from.order - right);
  if (open < 0) {
    index_t unified = 0;
    return {dims.unify(total, known, unified), {dtype::f32, target}};
  }
  if (total >= 0 && known > 0 && total % known) return {false, {}};
  if (several) return {true, {dtype::f32, target}};
  if (index_t none = 0;
      known == 0)  // any extent fits: in types it may be given at run time; elsewhere it is undetermined
    return {Dims::is_static && dims.unify(total, 0, none), {dtype::f32, target}};
  target[open] = dims.divide(total, known);
  return {true, {dtype::f32, target}};
}

}  // namespace weft
