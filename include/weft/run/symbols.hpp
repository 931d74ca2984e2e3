// SPDX-License-Identifier: MIT
// Values of the symbols of a plan at run time, and the errors for extents that do not match.
//
//   const symbol_values numbers = resolve_symbols(plan, leaves, sizes);
#pragma once

#include <string_view>

#include <weft/lower/plan.hpp>
#include <weft/shape/placement.hpp>
#include <weft/tensor/tensor.hpp>

namespace weft::runtime {

/// The plan of a program (lower/plan.hpp).
using lower::plan_view;

/// The value of each symbol of a plan, by number.
using symbol_values = recycled_vector<index_t>;

namespace detail {
inline index_t number_of(const symbol_values& numbers, index_t e) {
  return e >= 0 ? e : numbers[static_cast<std::size_t>(symbol_table::number_of(e))];
}

/// `s` with numbers in place of symbols.
inline shape resolved(const symbol_values& numbers, shape s) {
  for (int d = 0; d < s.order; ++d) s[d] = number_of(numbers, s[d]);
  return s;
}

/// Throws shape_error: `what` does not hold for the operands of law number `law` of the plan.
[[noreturn, gnu::cold]] void refuse_extents(const plan_view& p, int law, const symbol_values& numbers,
                                            std::initializer_list<message_part> what);

[[noreturn, gnu::cold]] void refuse_check(const plan_view& p, const extent_check& c,
                                          const symbol_values& numbers);

index_t quotient(const plan_view& p, const symbol& s, const symbol_values& numbers);

/// Throws shape_error for the first slice of a plan that exceeds its operand.
[[gnu::cold]] void check_slices(const plan_view& p, const symbol_values& numbers);

/// `size`, a size or bound given at run time; throws shape_error if it is negative.
index_t non_negative(index_t size);

/// A sum, difference or product of extents; throws shape_error if it overflows.
index_t combined(const plan_view& p, const symbol& s, const symbol_values& numbers);
}  // namespace detail

/// A rank among those that divide layers and among those that divide positions.
struct layer_rank {
  index_t ranks = 1, rank = 0;
  index_t context_ranks = 1, context_rank = 0;
  index_t positions = 0;  // of all of these ranks; 0 if it is not known

  void divides_layers(index_t among, index_t number) {
    ranks = among;
    rank = number;
  }
  void divides_positions(index_t among, index_t number, index_t all) {
    context_ranks = among;
    context_rank = number;
    positions = all;
  }
};

namespace detail {
symbol_values symbols_of_rank(const plan_view& p, const tensor_list& leaves,
                              const recycled_vector<index_t>& sizes, const layer_rank& at);

/// Throws shape_error because the parts of rank `at` do not fit, with the reason `why`; if the whole does not
/// fit either, throws the same error as without division.
[[gnu::cold]] void refuse_parts(const plan_view& p, const tensor_list& leaves,
                                const recycled_vector<index_t>& sizes, const layer_rank& at,
                                std::string_view why);
}  // namespace detail

/// The values of the symbols of a plan, from the shapes of the leaves and the given sizes. Throws
/// shape_error, naming the op and the shapes of its operands, if extents do not match. Where ranks divide
/// layers, the parts of all of them must fit, so that either all ranks throw or none does.
symbol_values resolve_symbols(const plan_view& p, const tensor_list& leaves,
                              const recycled_vector<index_t>& sizes, const layer_rank& own = {});

}  // namespace weft::runtime

#ifndef WEFT_COMPILED
#include <weft/run/impl/symbols.ipp>
#endif
