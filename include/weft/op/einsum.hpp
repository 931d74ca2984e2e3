// SPDX-License-Identifier: MIT
// Sums of products, described by the letters of an equation, as torch.einsum.
//
//   einsum<"bij,bjk->bik">(a, b)     // a batch of matrix products
//   einsum<"bthd,hde->bte">(x, w)    // a sum over two dims: one matrix product
//   einsum<"ij->ji">(a)              // transposed
//
// An equation becomes views, sums and at most one matrix product, from which kernels, derivatives and
// division among ranks follow.
#pragma once

#include <utility>

#include <weft/op/contraction.hpp>
#include <weft/op/reduce.hpp>

namespace weft::op {

/// The compile-time error for operands of `einsum` in which a letter has two extents.
template <bool Holds, class... Extents>
struct einsum_law {
  static_assert(Holds, "weft: einsum: a letter must have the same extent in both operands");
};
/// The compile-time error for operands of `einsum` that do not have the same floating type.
template <bool Holds, class... Types>
struct einsum_type_law {
  static_assert(Holds, "weft: einsum: both operands must have the same floating type");
};

/// The letters of a tensor in an equation, one per dim, numbered from 1. As an attribute of `einsum`: a
/// number with these hexadecimal digits.
struct einsum_letters {
  int count = 0;
  int at[max_order]{};

  constexpr einsum_letters() = default;
  constexpr explicit einsum_letters(index_t digits) {
    while (count < max_order && digits >> 4 * count) ++count;
    for (int i = 0; i < count; ++i) at[i] = static_cast<int>(digits >> 4 * (count - 1 - i) & 15);
  }
  constexpr index_t digits() const {
    index_t all = 0;
    for (int i = 0; i < count; ++i) all = all << 4 | at[i];
    return all;
  }
  constexpr void append(int letter) { at[count++] = letter; }
  /// The dim of a letter; -1 if no dim has it.
  constexpr int find(int letter) const {
    for (int i = 0; i < count; ++i)
      if (at[i] == letter) return i;
    return -1;
  }
  constexpr bool has(int letter) const { return find(letter) >= 0; }
  /// The letters that `other` also has.
  constexpr einsum_letters in(const einsum_letters& other) const { return chosen(other, true); }
  /// The letters that `other` does not have.
  constexpr einsum_letters without(const einsum_letters& other) const { return chosen(other, false); }
  constexpr einsum_letters operator+(const einsum_letters& more) const {
    einsum_letters all = *this;
    for (int i = 0; i < more.count; ++i) all.append(more.at[i]);
    return all;
  }
  /// The dims whose letters are in `some`, as bits.
  constexpr index_t dims_of(const einsum_letters& some) const {
    index_t set = 0;
    for (int i = 0; i < count; ++i) set |= index_t{some.has(at[i])} << i;
    return set;
  }
  /// The permutation that brings these letters into the order `to`.
  constexpr attributes order_of(const einsum_letters& to) const {
    attributes order;
    order.count = to.count;
    for (int i = 0; i < to.count; ++i) order[i] = find(to.at[i]);
    return order;
  }
  constexpr bool operator==(const einsum_letters&) const = default;

 private:
  constexpr einsum_letters chosen(const einsum_letters& other, bool had) const {
    einsum_letters some;
    for (int i = 0; i < count; ++i)
      if (other.has(at[i]) == had) some.append(at[i]);
    return some;
  }
};

/// Sums of products of two operands. v0, v1, v2: the einsum_letters of the operands and of the result;
/// "ij,jk->ik" is 0x12, 0x23, 0x13.
struct einsum : rule<2> {
  static constexpr auto kind = op_kind::composed;
  static constexpr auto name = "einsum";
  template <bool Holds, class... Extents>
  using law = einsum_law<Holds, Extents...>;
  template <bool Holds, class... Types>
  using type_law = einsum_type_law<Holds, Types...>;

  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    const einsum_letters a(at[0]), b(at[1]), y(at[2]);
    const shape &left = operands[0].extents, &right = operands[1].extents;
    inferred result{a.count == left.order && b.count == right.order,
                    {operands[0].type, {}},
                    operands[0].type == operands[1].type && is_floating(operands[0].type)};
    if (!result.holds) return result;
    index_t extent[16]{};  // by letter
    for (int i = 0; i < a.count; ++i) extent[a.at[i]] = left[i];
    for (int i = 0; i < b.count; ++i) {
      index_t& e = extent[b.at[i]];
      if (!a.has(b.at[i])) e = right[i];
      else if (!dims.unify(e, right[i], e)) result.holds = false;
    }
    for (int i = 0; i < y.count; ++i) result.value.extents.append(extent[y.at[i]]);
    return result;
  }

  /// Letters that only one operand has are summed first. If both operands share a letter that is summed, and
  /// one of them has a letter of the result that the other lacks, the rest is a matrix product, and letters
  /// are merged into its rows, columns and inner dims; otherwise it is an element-wise product.
  static constexpr auto value(const attributes& at, auto a, auto b) {
    einsum_letters of_a(at[0]), of_b(at[1]);
    const einsum_letters y(at[2]);
    const einsum_letters only_a = of_a.without(of_b).without(y), only_b = of_b.without(of_a).without(y);
    a = summed(a, of_a, only_a);
    b = summed(b, of_b, only_b);
    of_a = of_a.without(only_a);
    of_b = of_b.without(only_b);
    const einsum_letters inner = of_a.in(of_b).without(y), batch = y.in(of_a).in(of_b);
    einsum_letters rows = of_a.without(of_b), columns = of_b.without(of_a);
    if (inner.count == 0 || rows.count + columns.count == 0) {
      const dtype wide = compute_type(a.type());
      const einsum_letters all = y + inner;
      const auto products = cast_to(aligned(a, of_a, all), wide) * cast_to(aligned(b, of_b, all), wide);
      return summed(products, all, inner);
    }
    if (columns.has(y.without(batch).at[0])) {  // the result of the transposed operands
      std::swap(a, b);
      std::swap(of_a, of_b);
      std::swap(rows, columns);
    }
    const auto product =
        contract_of(matrices(a, of_a, batch, rows, inner), matrices(b, of_b, batch, inner, columns));
    const einsum_letters all = batch + rows + columns;
    shape split;
    for (int i = 0; i < all.count; ++i) {
      const int own = of_a.find(all.at[i]);
      split.append(own < 0 ? b.extents()[of_b.find(all.at[i])] : a.extents()[own]);
    }
    return permuted(reshape_to(product, split), all, y);
  }

 private:
  static constexpr auto summed(auto x, const einsum_letters& of_x, const einsum_letters& over) {
    const attributes at{{of_x.dims_of(over), 0}, 2};
    return over.count ? x.owner->template apply<sum>(at, x) : x;
  }
  static constexpr auto permuted(auto x, const einsum_letters& of_x, const einsum_letters& to) {
    return of_x == to ? x : permute_dims(x, of_x.order_of(to));
  }
  /// x with the dims `all`, of extent 1 where x lacks the letter.
  static constexpr auto aligned(auto x, const einsum_letters& of_x, const einsum_letters& all) {
    shape s;
    for (int i = 0; i < all.count; ++i) {
      const int own = of_x.find(all.at[i]);
      s.append(own < 0 ? 1 : x.extents()[own]);
    }
    return reshape_to(permuted(x, of_x, all.in(of_x)), s);
  }
  /// x as matrices: the letters `rows` merged into the rows, and `columns` into the columns.
  static constexpr auto matrices(auto x, const einsum_letters& of_x, const einsum_letters& batch,
                                 const einsum_letters& rows, const einsum_letters& columns) {
    const auto y = permuted(x, of_x, batch + rows + columns);
    shape s = y.extents();
    s.order = batch.count;
    s.append(product(x.owner->dims, y.extents(), batch.count, batch.count + rows.count));
    s.append(product(x.owner->dims, y.extents(), batch.count + rows.count, of_x.count));
    return reshape_to(y, s);
  }
};

}  // namespace weft::op

namespace weft {

/// The equation of `einsum`, a template argument: einsum<"ij,jk->ik">(a, b).
template <std::size_t N>
struct equation {
  char text[N]{};
  consteval equation(const char (&of)[N]) {
    for (std::size_t i = 0; i < N; ++i) text[i] = of[i];
  }
};

namespace detail {
/// What can be wrong with an equation.
enum class equation_fault { none, form, operand_count, letter_count, repeated, unknown, too_many };

/// An equation as lists of letters.
class equation_terms {
 public:
  constexpr explicit equation_terms(const char* text) {
    bool arrow = false;
    for (const char* c = text; *c; ++c) {
      if (*c == ' ') continue;
      if (is_letter(*c)) {
        add(arrow ? result : operands_ - 1, *c);
      } else if (*c == ',' && !arrow) {
        ++operands_;
      } else if (*c == '-' && c[1] == '>' && !arrow) {
        arrow = true;
        ++c;
      } else {
        formed_ = false;
      }
    }
    for (char c = 'A'; c <= 'z' && !arrow; ++c)
      if (uses_[static_cast<int>(c)] == 1) add(result, c);
  }
  constexpr equation_fault fault(std::initializer_list<int> orders) const {
    using enum equation_fault;
    if (!formed_) return form;
    if (operands_ != static_cast<int>(orders.size())) return operand_count;
    int k = 0;
    for (const int order : orders)
      if (count_[k++] != order) return letter_count;
    if (repeated_) return repeated;
    if (unknown_) return unknown;
    return count_[result] > max_order ? too_many : none;
  }
  /// The digits of einsum_letters for operand k.
  constexpr index_t operand(int k) const { return letters_[k].digits(); }
  constexpr index_t of_result() const { return letters_[result].digits(); }

 private:
  static constexpr int result = 2;
  static constexpr bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
  constexpr void add(int term, char c) {
    if (term > result) return;  // too many operands
    int& number = number_[static_cast<int>(c)];
    if (term != result) {
      if (number == 0) number = ++numbers_;
      ++uses_[static_cast<int>(c)];
    }
    unknown_ = unknown_ || number == 0;
    repeated_ = repeated_ || letters_[term].has(number);
    if (++count_[term] <= max_order) letters_[term].append(number);
  }

  bool formed_ = true, repeated_ = false, unknown_ = false;
  int operands_ = 1, numbers_ = 0;
  int count_[3]{};                           // letters of the operands and of the result
  op::einsum_letters letters_[3]{};          // the first ones
  int number_['z' + 1]{}, uses_['z' + 1]{};  // in operands
};

/// The equation E for operands with these numbers of dims; an invalid equation does not compile.
template <equation E, int... Orders>
struct checked_equation {
  static constexpr equation_terms terms{E.text};
  static constexpr equation_fault fault = terms.fault({Orders...});
  static_assert(fault != equation_fault::form,
                "weft: einsum: an equation has letters for each operand, a comma between two operands, and "
                "-> before the letters of the result: \"ij,jk->ik\"; \"...\" is not supported");
  static_assert(fault != equation_fault::operand_count,
                "weft: einsum: the equation is for another number of operands");
  static_assert(fault != equation_fault::letter_count,
                "weft: einsum: the equation must have one letter for each dim of the operands");
  static_assert(fault != equation_fault::repeated,
                "weft: einsum: a letter occurs twice in an operand or in the result: diagonals are not "
                "supported");
  static_assert(fault != equation_fault::unknown,
                "weft: einsum: a letter of the result occurs in no operand");
  static_assert(fault != equation_fault::too_many, "weft: einsum: the result would have more than 6 dims");
  static constexpr bool valid = fault == equation_fault::none;
};

/// `x`, whose dims have the letters From, with its dims in the order To; both are given by their digits.
template <index_t From, index_t To, expression X, std::size_t... I>
constexpr auto reordered(X x, std::index_sequence<I...>) {
  constexpr op::einsum_letters from(From), to(To);
  if constexpr (From == To) return x;
  else return apply<op::permute, attr<from.find(to.at[I])...>>(std::move(x));
}
/// The same with only the letters To, summed over the others.
template <index_t From, index_t To, expression X>
constexpr auto rearranged(X x) {
  constexpr op::einsum_letters from(From), to(To), others = from.without(to);
  constexpr std::make_index_sequence<std::size_t{to.count}> dims;
  if constexpr (others.count == 0) return reordered<From, To>(std::move(x), dims);
  else
    return reordered<from.in(to).digits(), To>(apply<op::sum, attr<from.dims_of(others), 0>>(std::move(x)),
                                               dims);
}
}  // namespace detail

/// Sums of products of two operands, as torch.einsum: einsum<"bij,bjk->bik">(a, b). Each letter, a to z or A
/// to Z, is a dim; spaces are ignored. The result has the letters after ->, or, without ->, those that occur
/// once, in alphabetical order; products are summed over all others. Both operands have the same floating
/// type; for bf16 and f16, sums are accumulated in f32 and rounded, and letters of only one operand are
/// summed before the product, as in PyTorch. All dims of one letter have the same extent: static ones that
/// differ do not compile, and dynamic ones throw shape_error at evaluation; unlike in PyTorch, an extent of 1
/// is not repeated. Operands and result have at most six dims. Rejected at compile time: a letter twice in
/// one operand (a diagonal), and "...". Cost: that of the matmul, or of the product and sum, that one would
/// write by hand; an operand or the result is copied only if letters that become one dim of a matrix are not
/// adjacent and in the same order, or if those of the result are mixed.
template <equation E, expression A, expression B>
constexpr auto einsum(A a, B b) {
  using read = detail::checked_equation<E, A::static_shape.order, B::static_shape.order>;
  if constexpr (read::valid) {
    constexpr auto& terms = read::terms;
    return apply<op::einsum, attr<terms.operand(0), terms.operand(1), terms.of_result()>>(std::move(a),
                                                                                          std::move(b));
  }
}
/// The same for one operand of any type, whose dims are permuted and summed: einsum<"ij->ji">(x). Integers
/// and bool are summed as i64, as by `sum`.
template <equation E, expression X>
constexpr auto einsum(X x) {
  using read = detail::checked_equation<E, X::static_shape.order>;
  if constexpr (read::valid)
    return detail::rearranged<read::terms.operand(0), read::terms.of_result()>(std::move(x));
}

}  // namespace weft
