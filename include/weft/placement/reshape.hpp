// SPDX-License-Identifier: MIT
// Where a divided dim ends up in a reshape, slice or pad of that dim.
#pragma once

#include <weft/shape/laws.hpp>
#include <weft/shape/placement.hpp>

namespace weft::graph::detail {

/// The dims of a shape other than those of extent 1, and where they are.
struct proper_dims {
  shape extents;
  int dim[max_order]{};
  constexpr explicit proper_dims(const shape& s) {
    for (int i = 0; i < s.order; ++i) {
      if (s[i] == 1) continue;
      dim[extents.order] = i;
      extents.append(s[i]);
    }
  }
};

/// `a` / `b` if the extents are known to divide exactly, otherwise 0.
constexpr index_t exact_quotient(symbol_table& dims, index_t a, index_t b) {
  if (dims.canonical(a) == dims.canonical(b)) return 1;
  if (b == 1) return a;
  if (a > 0 && b > 0) return a % b == 0 ? a / b : 0;
  if (!symbol_table::is_symbol(a)) return 0;
  const symbol s = dims.symbols[symbol_table::number_of(a)];
  if (s.kind != symbol_kind::multiply) return 0;
  if (dims.canonical(s.b) == dims.canonical(b)) return s.a;
  return dims.canonical(s.a) == dims.canonical(b) ? s.b : 0;
}

/// Follows divided dims through reshapes.
class reshaped_placement {
 public:
  constexpr reshaped_placement(symbol_table& dims, const shape& from, const shape& to)
      : dims_(dims), from_(from), to_(to) {}

  /// Sets `q` to the placement that `p` becomes; false if no dim of the result is divided in the same way. A
  /// unit smaller than the extent that stays undivided in the result becomes a condition on the number of
  /// ranks, checked at run time.
  constexpr bool follow(const placement& p, placement& q) {
    if (!find_block(p.dim)) return false;
    int s = i_;
    while (s < a_ && from_.dim[s] != p.dim) ++s;
    if (s == a_) return false;
    const index_t outer = dims_.multiply(product(dims_, from_.extents, i_, s), p.groups);
    const index_t unit = dims_.multiply(p.unit, product(dims_, from_.extents, s + 1, a_));
    q.pieces = p.pieces;
    for (int u = j_; u < b_; ++u)
      if (same(product(dims_, to_.extents, j_, u), outer)) return set(u, 1, unit, q);
    if (b_ == j_ + 1) return set(j_, outer, unit, q);
    for (int u = b_; u-- > j_;) {
      const index_t before = product(dims_, to_.extents, j_, u), e = to_.extents[u];
      const bool counted = before > 0 && outer > 0 && outer % before == 0;
      if (counted && e > outer / before && e % (outer / before) == 0) return set(u, outer / before, unit, q);
    }
    return false;
  }
  /// Whether the dim that follow() has found holds whole units; otherwise parts of units are in other dims.
  constexpr bool holds_units() const { return holds_units_; }
  /// The dims of the result, as bits, over which the elements of dim `dim` are distributed.
  constexpr unsigned beside(int dim) {
    unsigned found = 0;
    if (!find_block(dim)) return found;
    remove_equal_end(dim);
    for (int u = j_; u < b_; ++u) found |= 1u << to_.dim[u];
    return found;
  }

 private:
  constexpr bool same(index_t a, index_t b) const { return dims_.canonical(a) == dims_.canonical(b); }

  /// Finds the smallest ranges of dims, [i, a) and [j, b), that hold the same elements and contain `dim`.
  constexpr bool find_block(int dim) {
    const shape &f = from_.extents, &t = to_.extents;
    for (i_ = j_ = 0; i_ < f.order && j_ < t.order; i_ = a_, j_ = b_) {
      find_end(f, t);
      if (from_.dim[i_] <= dim && dim <= from_.dim[a_ - 1]) return true;
    }
    return false;
  }
  /// The remaining dims on both sides have equally many elements, even if that does not follow from the
  /// symbols.
  constexpr void find_end(const shape& f, const shape& t) {
    for (int both = 2; both <= f.order - i_ + t.order - j_; ++both)
      for (a_ = i_ + 1; a_ < i_ + both && a_ <= f.order; ++a_) {
        b_ = j_ + both - (a_ - i_);
        if (b_ <= t.order && same(product(dims_, f, i_, a_), product(dims_, t, j_, b_))) return;
      }
    a_ = f.order;
    b_ = t.order;
  }
  /// Removes dims with the same elements from the ends of the ranges, after `dim`.
  constexpr void remove_equal_end(int dim) {
    for (int a = i_ + 1; a < a_; ++a)
      for (int b = j_ + 1; b < b_ && from_.dim[a - 1] >= dim; ++b)
        if (same(product(dims_, from_.extents, a, a_), product(dims_, to_.extents, b, b_))) {
          a_ = a;
          b_ = b;
        }
  }
  /// False if units that have pieces or are shared are known not to be whole numbers of indices or pieces.
  constexpr bool set(int u, index_t groups, index_t unit, placement& q) {
    const index_t inner = product(dims_, to_.extents, u + 1, b_);
    index_t units = exact_quotient(dims_, unit, inner);
    holds_units_ = units != 0;
    if (q.pieces != 1) {
      if (units == 0 && unit > 0 && inner > 0) return false;
      if (units == 0) units = dims_.divide(unit, inner);
      if (units > 0 && q.pieces > 1 && units % q.pieces) return false;
    }
    q = divided_along(to_.dim[u], groups, units == 0 ? 1 : units, q.pieces);
    return true;
  }

  symbol_table& dims_;
  proper_dims from_, to_;
  int i_ = 0, a_ = 0, j_ = 0, b_ = 0;
  bool holds_units_ = false;
};

/// The extent `x` as a multiple of `part`; -1 if it is not a small multiple.
constexpr index_t multiple_of(symbol_table& dims, index_t x, index_t part) {
  constexpr index_t most = 64;
  if (x == 0) return 0;
  if (x > 0 && part > 0) return x % part == 0 && x / part <= most ? x / part : -1;
  for (index_t k = 1; k <= most; ++k)
    if (dims.canonical(dims.multiply(part, k)) == dims.canonical(x)) return k;
  return -1;
}

}  // namespace weft::graph::detail
