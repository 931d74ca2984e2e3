// SPDX-License-Identifier: MIT
// Definitions of <weft/run/symbols.hpp>.
#pragma once

#include <algorithm>

#include <weft/base/config.hpp>
#include <weft/run/symbols.hpp>

namespace weft {
namespace runtime {
namespace detail {

WEFT_DEFINE void refuse_extents(const plan_view& p, int law, const symbol_values& numbers,
                                std::initializer_list<message_part> what) {
  std::string text = "weft: ";
  if (law >= 0) {
    const applied_law& l = p.laws[static_cast<std::size_t>(law)];
    text += l.op;
    text += l.operands > 1 ? ": operands of shapes " : ": an operand of shape ";
    for (int i = 0; i < l.operands && i < applied_law::shapes; ++i) {
      const shape s = resolved(numbers, l.operand[i]);
      text += (i == 0 ? "" : i + 1 < l.operands ? ", " : " and ") + to_string(s);
    }
    text += l.operands > applied_law::shapes ? ", ...: " : ": ";
  }
  refuse<shape_error>({text, weft::detail::joined(what)});
}

WEFT_DEFINE void refuse_check(const plan_view& p, const extent_check& c, const symbol_values& numbers) {
  const index_t a = number_of(numbers, c.a), b = number_of(numbers, c.b);
  switch (c.kind) {
    case check_kind::equal_in_broadcast:
      if (a == 1 || b == 1)
        refuse_extents(p, c.law, numbers,
                       {"extents ", a, " and ", b,
                        " must be equal: an extent that broadcasts must be 1 in the type, as "
                        "reshape<1, dyn>(x) makes it"});
      [[fallthrough]];
    case check_kind::equal: refuse_extents(p, c.law, numbers, {"extents ", a, " and ", b, " must be equal"});
    case check_kind::at_most: refuse_extents(p, c.law, numbers, {a, " must be at most ", b});
    default: refuse_extents(p, c.law, numbers, {"the dim has no elements"});
  }
}

WEFT_DEFINE index_t quotient(const plan_view& p, const symbol& s, const symbol_values& numbers) {
  const index_t a = number_of(numbers, s.a), b = number_of(numbers, s.b);
  if (b <= 0 || (s.kind == symbol_kind::divide && a % b))
    refuse_extents(p, s.law, numbers, {"an extent of ", a, " cannot be divided into parts of ", b});
  return a / b + (a % b > 0);
}

WEFT_DEFINE void check_slices(const plan_view& p, const symbol_values& numbers) {
  const auto number = [&](index_t e) { return number_of(numbers, e); };
  for (const lower::value_entry& v : p.values) {
    if (v.view != view_kind::slice) continue;
    const shape from = resolved(numbers, p.values[static_cast<std::size_t>(v.source)].result.extents);
    const int dim = static_cast<int>(v.at[0]);
    const index_t start = number(v.at[1]), stop = number(v.at[2]);
    if (start < 0 || start > from[dim] || stop > from[dim] || number(v.result.extents[dim]) < 0)
      refuse<shape_error>(
          {"weft: slice: dim ", dim, " of ", from, " does not have the elements from ", start, " to ", stop});
  }
}

WEFT_DEFINE index_t non_negative(index_t size) {
  if (size < 0) refuse<shape_error>({"weft: a size or bound given at run time is negative: ", size});
  return size;
}

WEFT_DEFINE index_t combined(const plan_view& p, const symbol& s, const symbol_values& numbers) {
  const index_t a = number_of(numbers, s.a), b = number_of(numbers, s.b);
  index_t n = 0;
  const bool overflows = s.kind == symbol_kind::add        ? __builtin_add_overflow(a, b, &n)
                         : s.kind == symbol_kind::subtract ? __builtin_sub_overflow(a, b, &n)
                                                           : __builtin_mul_overflow(a, b, &n);
  if (overflows)
    refuse_extents(p, s.law, numbers, {"extents do not fit into 64 bits, computed from ", a, " and ", b});
  return n;
}

WEFT_DEFINE symbol_values symbols_of_rank(const plan_view& p, const tensor_list& leaves,
                                          const recycled_vector<index_t>& sizes, const layer_rank& at) {
  symbol_values numbers(p.symbols.size());
  const auto number = [&](index_t e) { return detail::number_of(numbers, e); };
  const auto value = [&](const symbol& s) -> index_t {
    switch (s.kind) {
      case symbol_kind::leaf_extent:
        return leaves[static_cast<std::size_t>(s.a)]->whole()[static_cast<int>(s.b)];
      case symbol_kind::given: return detail::non_negative(sizes[static_cast<std::size_t>(s.a)]);
      case symbol_kind::add:
      case symbol_kind::subtract:
      case symbol_kind::multiply: return detail::combined(p, s, numbers);
      case symbol_kind::part: return count_of_part(number(s.a), at.ranks, at.rank, s.b);
      case symbol_kind::part_first: return first_of_part(number(s.a), at.ranks, at.rank, s.b);
      case symbol_kind::all_positions: return at.context_ranks > 1 ? at.positions : number(s.a);
      case symbol_kind::context_part: return count_of_part(number(s.a), at.context_ranks, at.context_rank);
      default: return detail::quotient(p, s, numbers);
    }
  };
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = value(p.symbols[i]);
  for (const extent_check& c : p.checks) {
    const index_t a = number(c.a), b = number(c.b);
    const bool equal = c.kind == check_kind::equal || c.kind == check_kind::equal_in_broadcast;
    const bool holds = equal ? a == b : c.kind == check_kind::at_most ? a <= b : a != 0;
    if (holds) continue;
    if (equal)
      detail::check_slices(p, numbers);  // a bound out of range is the more specific error
    detail::refuse_check(p, c, numbers);
  }
  return numbers;
}

WEFT_DEFINE void refuse_parts(const plan_view& p, const tensor_list& leaves,
                              const recycled_vector<index_t>& sizes, const layer_rank& at,
                              std::string_view why) {
  layer_rank one = at;
  one.divides_layers(1, 0);
  (void)symbols_of_rank(p, leaves, sizes, one);
  why.remove_prefix(std::min(why.size(), std::string_view("weft: ").size()));
  refuse<shape_error>({"weft: tensor parallel: ", at.ranks, " ranks cannot divide these layers. Rank ",
                       at.rank, ": ", why, ". A number of heads must be a multiple of the number of ranks"});
}

}  // namespace detail

WEFT_DEFINE symbol_values resolve_symbols(const plan_view& p, const tensor_list& leaves,
                                          const recycled_vector<index_t>& sizes, const layer_rank& own) {
  layer_rank at = own;
  try {
    for (at.rank = 0; at.rank < own.ranks; ++at.rank)
      if (at.rank != own.rank) (void)detail::symbols_of_rank(p, leaves, sizes, at);
    at = own;
    return detail::symbols_of_rank(p, leaves, sizes, own);
  } catch (const shape_error& e) {
    if (own.ranks > 1) detail::refuse_parts(p, leaves, sizes, at, e.what());
    throw;
  }
}

}  // namespace runtime
}  // namespace weft
