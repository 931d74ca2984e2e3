// SPDX-License-Identifier: MIT
// Look-ups: rows by index, and their derivative, which adds rows up.
//
//   auto e = embedding(weight, tokens);      // [V, C], [B, T] -> [B, T, C]
#pragma once

#include <weft/device/cpu/rows.hpp>
#include <weft/op/functions.hpp>
#include <weft/op/rule.hpp>

namespace weft::op {

template <bool Holds, class... Extents>
struct take_law {
  static_assert(Holds, "weft: embedding: the table must have at least one dim, and the order of "
                       "the result must not exceed 6");
};
template <bool Holds, class... Types>
struct index_type_law {
  static_assert(Holds, "weft: indices must be i64, i32 or u8");
};

/// Rows of a new tensor of v0 rows: row i is the sum of the rows of operand 1 whose index is i.
struct put_rows : rule<2> {
  static constexpr auto kind = op_kind::native;
  static constexpr auto name = "put_rows";
  static constexpr native_code code{&cpu::put_rows};
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes& at, const form* operands) {
    inferred result{true, {operands[1].type, {1, {at[0]}}}};
    for (int i = operands[0].extents.order; i < operands[1].extents.order; ++i)
      result.value.extents.append(operands[1].extents[i]);
    return result;
  }
  static constexpr auto vjp(auto g, auto, auto index, auto) {
    return std::array{no_gradient(g), take_rows_of(g, index)};
  }
};

/// Row index[i...] of the table, for every index.
struct take_rows : rule<2> {
  static constexpr auto kind = op_kind::native;
  static constexpr auto name = "take_rows";
  static constexpr native_code code{&cpu::take_rows};
  template <bool Holds, class... Extents>
  using law = take_law<Holds, Extents...>;
  template <bool Holds, class... Types>
  using type_law = index_type_law<Holds, Types...>;

  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const form* operands) {
    const shape &table = operands[0].extents, &index = operands[1].extents;
    inferred result{table.order >= 1 && index.order + table.order - 1 <= max_order,
                    {operands[0].type, index}};
    const dtype t = operands[1].type;
    result.types_fit = t == dtype::i64 || t == dtype::i32 || t == dtype::u8;
    for (int i = 1; i < table.order && result.holds; ++i) result.value.extents.append(table[i]);
    return result;
  }
  static constexpr auto vjp(auto g, auto, auto table, auto index) {
    const attributes rows{{table.extents()[0]}, 1};
    return std::array{g.owner->template apply<put_rows>(rows, index, g), no_gradient(g)};
  }
};

}  // namespace weft::op

namespace weft {

/// Rows of `table` [V, ...] by `index` [...]: the table's rows replace the indices. An index
/// outside [0, V) is a value_error.
template <expression Table, expression Index>
constexpr auto embedding(Table table, Index index) {
  return apply<op::take_rows>(std::move(table), std::move(index));
}

}  // namespace weft
