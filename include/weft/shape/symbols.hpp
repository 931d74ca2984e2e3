// SPDX-License-Identifier: MIT
// Arithmetic on extents that may be unknown at compile time.
//
// Shape laws are written once against this interface and evaluated twice: in the type system by
// `static_dims`, where everything unknown is `dyn`, and in the graph by `symbol_table`, where an unknown
// extent is a symbol with a formula. There, [B, T, C] reshaped to [B*T, C] is known to have the same size,
// and unifying B with B' emits one run-time check.
#pragma once

#include <weft/base/sequence.hpp>
#include <weft/shape/attributes.hpp>

namespace weft {

/// a * b modulo 2^64, for products that are not used if they overflow.
constexpr index_t wrapping_product(index_t a, index_t b) {
  return static_cast<index_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}

/// Conditions on extents that are checked at run time.
enum class check_kind : std::uint8_t {
  equal,               // a == b
  equal_in_broadcast,  // a == b, where an extent of 1 in the type would be repeated
  at_most,             // a <= b
  has_elements         // a != 0
};

/// Extents in the type system: a number, or dyn.
struct static_dims {
  static constexpr bool is_static = true;
  /// Sets `out` to the common extent; false if both are known and differ.
  constexpr bool unify(index_t a, index_t b, index_t& out, check_kind = check_kind::equal) {
    out = a == dyn ? b : a;
    return a == b || a == dyn || b == dyn;
  }
  /// Whether a dim of extent `a` can have elements: false only if it is known to be 0.
  constexpr bool require_elements(index_t a) { return a != 0; }
  /// Whether `a` can be at most `b`: false only if both are known and a > b.
  constexpr bool require_at_most(index_t a, index_t b) { return a < 0 || b < 0 || a <= b; }
  constexpr index_t add(index_t a, index_t b) {
    index_t sum = dyn;
    return a >= 0 && b >= 0 && detail::add_checked(a, b, sum) ? sum : dyn;
  }
  constexpr index_t subtract(index_t a, index_t b) { return a < 0 || b < 0 ? dyn : a - b; }
  constexpr index_t multiply(index_t a, index_t b) {
    index_t product = dyn;  // if it overflows, extents<...> reports it
    return a >= 0 && b >= 0 && detail::multiply_checked(a, b, product) ? product : dyn;
  }
  constexpr index_t divide(index_t a, index_t b) { return a < 0 || b <= 0 ? dyn : a / b; }
  constexpr index_t divide_up(index_t a, index_t b) {
    return a < 0 || b <= 0 ? dyn : a / b + (a % b > 0);
  }
};

/// How the value of a symbol is computed at run time.
enum class symbol_kind : std::uint8_t {
  leaf_extent,
  given,
  add,
  subtract,
  multiply,
  divide,  // exact; a remainder is an error once the value is known
  divide_up,
  part,           // of `a` units of `b` pieces each, those of this rank (count_of_part, shape/placement.hpp)
  part_first,     // the first of these
  all_positions,  // the positions of all ranks that divide them; this rank has `a`
  context_part    // of `a` units, those of this rank among the ranks that divide positions
};

/// An unknown extent: a formula over extents of leaves, given sizes and other extents.
struct symbol {
  symbol_kind kind{};
  index_t a = 0, b = 0;  // leaf and dim; or the number of the given size; or one or two extents
  int law = -1;          // for a quotient: the op that it comes from, for messages
};

/// A condition that extents must satisfy at run time.
struct extent_check {
  check_kind kind{};
  index_t a = 0, b = 0;
  int law = -1;  // the applied op that requires it, for messages
};

/// An op and the shapes of its operands, for error messages.
struct applied_law {
  static constexpr int shapes = 3;
  const char* op = nullptr;
  int operands = 0;
  shape operand[shapes]{};  // of the first operands
};

/// Extents in the graph: numbers and symbols. Symbol number s is represented by the extent -2 - s.
class symbol_table {
 public:
  static constexpr bool is_static = false;
  sequence<symbol> symbols;
  sequence<extent_check> checks;
  sequence<applied_law> laws;  // those that emitted checks
  sequence<index_t> same_as;  // for each symbol: the extent it was unified with, or itself
  int unified = 0;            // symbols in existing nodes that have been unified with another extent

  /// Checks and quotients emitted until `end_law` are attributed to `op` on these operands.
  constexpr void begin_law(const char* op, const tensor_spec* operands, int count) {
    reading_ = op;
    operands_ = operands;
    count_ = count;
    law_ = -1;
  }
  constexpr void end_law() {
    reading_ = nullptr;
    operands_ = nullptr;
    law_ = -1;
  }

  static constexpr bool is_symbol(index_t e) { return e <= -2; }
  static constexpr int number_of(index_t e) { return static_cast<int>(-2 - e); }

  constexpr index_t leaf_extent(int leaf, int dim) {
    return intern({symbol_kind::leaf_extent, leaf, dim});
  }
  constexpr index_t given(int number) { return intern({symbol_kind::given, number, 0}); }
  /// How many of the `units` this rank has where ranks divide layers, and the first of them, counted in
  /// pieces as by count_of_part. `pieces` is a number.
  constexpr index_t part(index_t units, index_t pieces) {
    return intern({symbol_kind::part, canonical(units), pieces});
  }
  constexpr index_t part_first(index_t units, index_t pieces) {
    return intern({symbol_kind::part_first, canonical(units), pieces});
  }

  /// Where ranks divide positions: the positions of all ranks if this one has `own`; and how many of the
  /// `units` this rank has if ranks exchange positions for units.
  constexpr index_t all_positions(index_t own) {
    return intern({symbol_kind::all_positions, canonical(own), 0});
  }
  constexpr index_t context_part(index_t units) {
    return intern({symbol_kind::context_part, canonical(units), 0});
  }

  /// Follows unifications to the extent that represents `e`.
  constexpr index_t canonical(index_t e) const {
    while (is_symbol(e) && same_as[number_of(e)] != e) e = same_as[number_of(e)];
    return e;
  }
  constexpr shape canonical(shape s) const {
    for (int i = 0; i < s.order; ++i) s[i] = canonical(s[i]);
    return s;
  }

  /// The attributes `at`, with canonical extents in place of those attributes that the bits of `extents` mark
  /// as extents.
  constexpr attributes canonical(attributes at, unsigned extents) const {
    for (int i = 0; i < at.count; ++i)
      if (extents >> i & 1) at[i] = canonical(at[i]);
    return at;
  }

  /// The formula of symbol `e`, with canonical operands.
  constexpr symbol formula(index_t e) const {
    symbol s = symbols[number_of(e)];
    s.a = canonical(s.a);
    s.b = canonical(s.b);
    return s;
  }

  /// An extent as symbol `of` times number `times`; `of` is 1 if the extent is a number.
  struct term {
    index_t of, times;
  };
  constexpr term term_of(index_t e) const {
    if (!is_symbol(e)) return {1, e};
    const symbol s = formula(e);
    if (s.kind == symbol_kind::multiply && s.b >= 0) return {s.a, s.b};
    return {e, 1};
  }

  [[gnu::cold]] constexpr bool unify(index_t a, index_t b, index_t& out,
                                     check_kind how = check_kind::equal) {
    a = canonical(a);
    b = canonical(b);
    if (a != b && (is_symbol(a) || is_symbol(b))) checks.push_back({how, a, b, current_law()});
    const bool holds = identify(a, b);
    out = canonical(a);
    return holds;
  }
  [[gnu::cold]] constexpr bool require_elements(index_t a) {
    a = canonical(a);
    if (is_symbol(a)) checks.push_back({check_kind::has_elements, a, 0, current_law()});
    return a != 0;
  }
  [[gnu::cold]] constexpr bool require_at_most(index_t a, index_t b) {
    a = canonical(a);
    b = canonical(b);
    if (a >= 0 && b >= 0) return a <= b;
    if (a != b) checks.push_back({check_kind::at_most, a, b, current_law()});
    return true;
  }
  /// Numbers are collected on the right.
  [[gnu::cold]] constexpr index_t add(index_t a, index_t b) {
    if (a >= 0 && b >= 0) return sum_of(a, b);
    if (a >= 0) return add(b, a);
    if (b == 0) return a;
    const symbol x = formula(a);
    if (b >= 0 && x.kind == symbol_kind::add && x.b >= 0) return add(x.a, sum_of(x.b, b));
    if (is_symbol(b)) {  // n x + m x is (n + m) x
      const term s = term_of(a), t = term_of(b);
      if (s.of == t.of) return multiply(s.of, sum_of(s.times, t.times));
    }
    return intern({symbol_kind::add, a, b});
  }
  [[gnu::cold]] constexpr index_t subtract(index_t a, index_t b) {
    if (b == 0) return a;
    if (a >= 0 && b > a) throw shape_error("weft: an extent would be negative");
    if (a >= 0 && b >= 0) return a - b;
    if (a == b) return 0;
    if (const symbol sum = is_symbol(a) ? formula(a) : symbol{}; sum.kind == symbol_kind::add) {
      if (sum.a == b) return sum.b;  // (x + y) - x is y
      if (sum.b == b) return sum.a;
      if (b >= 0 && sum.b >= b) return add(sum.a, sum.b - b);
    }
    if (is_symbol(a) && is_symbol(b)) {
      const term s = term_of(a), t = term_of(b);
      if (s.of == t.of && s.times > t.times) return multiply(s.of, s.times - t.times);
    }
    return intern({symbol_kind::subtract, a, b});
  }
  /// Numeric factors are collected on the right, and a quotient times its divisor is the dividend.
  [[gnu::cold]] constexpr index_t multiply(index_t a, index_t b) {
    if (a >= 0 && b >= 0) return product_of(a, b);
    if (a >= 0) return multiply(b, a);
    if (b == 0) return 0;
    if (b == 1) return a;
    const symbol x = formula(a);
    if (x.kind == symbol_kind::multiply && x.b >= 0 && b >= 0) return multiply(x.a, product_of(x.b, b));
    if (x.kind == symbol_kind::divide && x.b == b) return x.a;
    if (is_symbol(b))
      if (const symbol y = formula(b); y.kind == symbol_kind::divide && y.b == a) return y.a;
    return intern({symbol_kind::multiply, a, b});
  }
  [[gnu::cold]] constexpr index_t divide(index_t a, index_t b) {
    if (b == 1) return a;
    if (a >= 0 && b > 0) return a / b;
    if (a == b) return 1;
    if (const symbol product = is_symbol(a) ? formula(a) : symbol{}; product.kind == symbol_kind::multiply) {
      if (product.b == b) return product.a;
      if (product.a == b) return product.b;
    }
    return intern({symbol_kind::divide, a, b, current_law()});
  }
  [[gnu::cold]] constexpr index_t divide_up(index_t a, index_t b) {
    if (b == 1) return a;
    return a >= 0 && b > 0 ? a / b + (a % b > 0) : intern({symbol_kind::divide_up, a, b, current_law()});
  }

 private:
  /// The sum and the product of two numbers; throw shape_error if they do not fit into 64 bits.
  static constexpr index_t sum_of(index_t a, index_t b) {
    if (!detail::add_checked(a, b, a)) throw shape_error("weft: a sum of extents does not fit into 64 bits");
    return a;
  }
  static constexpr index_t product_of(index_t a, index_t b) {
    if (!detail::multiply_checked(a, b, a))
      throw shape_error("weft: a product of extents does not fit into 64 bits");
    return a;
  }

  /// Number of the current law, -1 if there is none.
  [[gnu::cold]] constexpr int current_law() {
    if (!reading_ || law_ >= 0) return law_;
    applied_law l{reading_, count_, {}};
    for (int i = 0; i < count_ && i < applied_law::shapes; ++i) l.operand[i] = operands_[i].extents;
    law_ = laws.size();
    laws.push_back(l);
    return law_;
  }

  /// Makes `a` and `b` one extent from here on; false if they cannot be equal. What follows from their
  /// equality needs no further check.
  [[gnu::cold]] constexpr bool identify(index_t a, index_t b) {
    a = canonical(a);
    b = canonical(b);
    if (a == b) return true;
    if (a >= 0 && b >= 0) return false;
    // If n x = m x, x is 0.
    if (const term s = term_of(a), t = term_of(b); is_symbol(s.of) && s.of == t.of && s.times != t.times)
      return identify(s.of, 0);
    const bool kept = a >= 0 || (b < 0 && a > b);  // a number, or else the older symbol, represents both
    const index_t stays = kept ? a : b, goes = kept ? b : a;
    same_as[number_of(goes)] = stays;
    ++unified;
    if (stays < 0) return identify_operands(goes, stays);
    for (int i = 0; i < symbols.size(); ++i)
      if (!follow(-2 - i)) return false;
    return true;
  }

  /// Draws conclusions from symbol `e`: a formula of numbers has a value, and if x n = m, x / n = m,
  /// x + n = m or x - n = m with numbers n and m, x is a number too. False if that contradicts what is known.
  [[gnu::cold]] constexpr bool follow(index_t e) {
    const symbol s = formula(e);
    const index_t value = canonical(e);
    const bool swapped = s.a >= 0 && is_symbol(s.b);
    if (swapped || is_symbol(s.a)) {
      if (swapped && s.kind != symbol_kind::add && s.kind != symbol_kind::multiply) return true;
      const index_t x = swapped ? s.b : s.a, n = swapped ? s.a : s.b;
      return n < 0 || value < 0 || solve(s.kind, x, n, value);
    }
    index_t sum = 0, product = 0;
    if (s.kind == symbol_kind::add) return !detail::add_checked(s.a, s.b, sum) || identify(value, sum);
    if (s.kind == symbol_kind::subtract) return s.a < s.b || identify(value, s.a - s.b);
    if (s.kind == symbol_kind::multiply)
      return !detail::multiply_checked(s.a, s.b, product) || identify(value, product);
    const bool quotient = s.kind == symbol_kind::divide || s.kind == symbol_kind::divide_up;
    if (!quotient || s.b == 0 || (s.kind == symbol_kind::divide && s.a % s.b)) return true;
    return identify(value, s.a / s.b + (s.a % s.b > 0));
  }
  /// Solves the formula of `x` and `n` with value `m` for x.
  [[gnu::cold]] constexpr bool solve(symbol_kind kind, index_t x, index_t n, index_t m) {
    index_t sum = 0, product = 0;
    if (kind == symbol_kind::multiply && n > 0) return m % n == 0 && identify(x, m / n);
    if (kind == symbol_kind::divide) return !detail::multiply_checked(m, n, product) || identify(x, product);
    if (kind == symbol_kind::add) return m >= n && identify(x, m - n);
    if (kind == symbol_kind::subtract) return !detail::add_checked(m, n, sum) || identify(x, sum);
    return true;
  }
  /// If x n = y n with n > 0, or x / n = y / n exactly, or x + z = y + z, or x - z = y - z, then x = y.
  [[gnu::cold]] constexpr bool identify_operands(index_t x, index_t y) {
    const symbol s = formula(x), t = formula(y);
    const bool one_to_one = s.kind == symbol_kind::divide || s.kind == symbol_kind::add ||
                            s.kind == symbol_kind::subtract || (s.kind == symbol_kind::multiply && s.b > 0);
    return s.kind != t.kind || !one_to_one || s.b != t.b || identify(s.a, t.a);
  }

  [[gnu::cold]] constexpr index_t intern(symbol s) {
    const index_t a = canonical(s.a), b = canonical(s.b);
    const bool commutes = s.kind == symbol_kind::add || s.kind == symbol_kind::multiply;
    for (int i = 0; i < symbols.size(); ++i) {  // operands may have been unified in the meantime
      const symbol t = formula(-2 - i);
      if (t.kind == s.kind && ((t.a == a && t.b == b) || (commutes && t.a == b && t.b == a)))
        return canonical(-2 - i);
    }
    symbols.push_back(s);
    same_as.push_back(-1 - symbols.size());
    return -1 - symbols.size();
  }

  const char* reading_ = nullptr;  // the op whose law is being read; operands_ are its operands
  const tensor_spec* operands_ = nullptr;
  int count_ = 0, law_ = -1;
};

}  // namespace weft
