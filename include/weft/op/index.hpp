// SPDX-License-Identifier: MIT
// Indexing ops: selection of rows and elements by index, and their derivatives, which sum cotangents by
// index.
//
//   auto e = embedding(weight, tokens);      // [V, C], [B, T] -> [B, T, C]
#pragma once

#include <weft/op/functions.hpp>
#include <weft/op/movement.hpp>
#include <weft/op/reduce.hpp>
#include <weft/op/rule.hpp>

namespace weft::op {

/// The compile-time error for tables that `embedding` does not accept.
template <bool Holds, class... Extents>
struct take_law {
  static_assert(Holds, "weft: embedding: the table must have at least one dim, and the order of "
                       "the result must not exceed 6");
};
/// The compile-time error for indices of a type other than i64, i32 or u8.
template <bool Holds, class... Types>
struct index_type_law {
  static_assert(Holds, "weft: indices must be i64, i32 or u8");
};
/// Whether elements of `t` can be indices.
constexpr bool is_index(dtype t) { return t == dtype::i64 || t == dtype::i32 || t == dtype::u8; }

/// The indices as i32. An index outside [0, v0) is a value_error, except that if v3 is 1, the index v2
/// becomes -1. v1: the op to name in errors (index_reader).
///
/// A separate step, because the row kernels that read its result cannot report errors.
struct checked_index : rule<1> {
  static constexpr auto kind = op_kind::native;
  static constexpr unsigned extents = 0b1;
  static constexpr auto name = "checked_index";
  static constexpr auto divides = "A -> A";
  static constexpr native_code code{.names = index_readers, .named_by = 1, .op = native_op::checked_index};
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    return {true, {dtype::i32, operands[0].extents}, is_index(operands[0].type)};
  }
  static constexpr auto vjp(auto g, auto, auto) { return no_gradient(g); }
};

/// Declared for the derivative of index_add; defined below.
struct index_select;

/// A new tensor with v0 rows, as torch's zeros().index_add_: row i is the sum of the rows of operand 1 whose
/// index is i. v1: the op to name in errors.
struct index_add : rule<2> {
  static constexpr auto kind = op_kind::native;
  static constexpr unsigned extents = 0b1;
  static constexpr bool widens = true;
  static constexpr auto name = "index_add";
  static constexpr auto divides = "I IR -> vR";
  static constexpr native_code code{
      .adds = true, .names = index_readers, .named_by = 1, .op = native_op::index_add};
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes& at, const tensor_spec* operands) {
    inferred result{true, {operands[1].type, {1, {at[0]}}}};
    for (int i = operands[0].extents.order; i < operands[1].extents.order; ++i)
      result.value.extents.append(operands[1].extents[i]);
    return result;
  }
  static constexpr auto vjp(auto g, auto y, auto index, auto) {
    const attributes reader{{y.attribute(1)}, 1};
    return std::array{no_gradient(g), g.owner->template apply<index_select>(reader, g, index)};
  }
};

/// The rows of the table, operand 0, at the indices, operand 1. v0: the op to name in errors (index_reader).
/// v1, if present: the index of a row that gets no cotangent.
struct index_select : rule<2> {
  static constexpr auto kind = op_kind::native;
  static constexpr auto name = "index_select";
  static constexpr auto divides = "vR I -> IR";
  static constexpr native_code code{.names = index_readers, .named_by = 0, .op = native_op::index_select};
  template <bool Holds, class... Extents>
  using law = take_law<Holds, Extents...>;
  template <bool Holds, class... Types>
  using type_law = index_type_law<Holds, Types...>;

  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes&, const tensor_spec* operands) {
    const shape &table = operands[0].extents, &index = operands[1].extents;
    inferred result{table.order >= 1 && index.order + table.order - 1 <= max_order,
                    {operands[0].type, index}};
    result.types_fit = is_index(operands[1].type);
    for (int i = 1; i < table.order && result.holds; ++i) result.value.extents.append(table[i]);
    return result;
  }
  static constexpr auto vjp(auto g, auto y, auto table, auto index) {
    const attributes at = y.attribute_values(), rows{{table.extents()[0], at[0]}, 2};
    const auto passed = at.count > 1 ? without_padding(g, index, at[1]) : g;
    return std::array{g.owner->template apply<index_add>(rows, index, passed), no_gradient(g)};
  }

 private:
  static constexpr auto without_padding(auto g, auto index, index_t padding) {
    shape beside = index.extents();
    while (beside.order < g.extents().order) beside.append(1);
    const auto is_padding = weft::equal(cast_to(index, dtype::i64), padding);
    return weft::where(reshape_to(is_padding, beside), 0, g);
  }
};

/// The compile-time error for operands of `gather` whose shapes do not match.
template <bool Holds, class... Extents>
struct gather_law {
  static_assert(Holds, "weft: gather: operand and indices must have the same order and, except along "
                       "the gathered dim, the same extents");
};

/// A tensor of zeros with extent v1 in dim v0, to which the elements of operand 1 are added at the indices
/// given by operand 0 along that dim.
struct scatter_sum : rule<2> {
  static constexpr auto kind = op_kind::native;
  static constexpr unsigned extents = 0b10;
  static constexpr bool widens = true;
  static constexpr auto name = "scatter_sum";
  static constexpr auto divides = "A! A! -> A!";
  static constexpr native_code code{
      .adds = true, .names = index_adders, .named_by = native_code::only_name, .op = native_op::scatter_sum};
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    const shape &index = operands[0].extents, &source = operands[1].extents;
    inferred result{index.order == source.order && at[0] < source.order, operands[1]};
    result.types_fit = is_index(operands[0].type) && operands[1].type != dtype::boolean;
    for (int i = 0; i < source.order && result.holds; ++i)
      result.holds = dims.unify(source[i], index[i], result.value.extents[i]);
    if (result.holds) result.value.extents[static_cast<int>(at[0])] = at[1];
    return result;
  }
  static constexpr auto vjp(auto g, auto y, auto index, auto) {
    return std::array{no_gradient(g), gather_of(g, index, y.attribute(0))};
  }
};

/// The elements of operand 0 at the indices of operand 1 along dim v0.
struct gather : rule<2> {
  static constexpr auto kind = op_kind::native;
  static constexpr auto name = "gather";
  static constexpr auto divides = "A! A! -> A!";
  static constexpr native_code code{.op = native_op::gather};
  template <bool Holds, class... Extents>
  using law = gather_law<Holds, Extents...>;
  template <bool Holds, class... Types>
  using type_law = index_type_law<Holds, Types...>;

  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    const shape &x = operands[0].extents, &index = operands[1].extents;
    inferred result{x.order == index.order && x.order > 0, {operands[0].type, index}};
    for (int i = 0; result.holds && i < x.order; ++i)
      if (i != at[0]) result.holds = dims.unify(x[i], index[i], result.value.extents[i]);
    result.types_fit = is_index(operands[1].type);
    return result;
  }
  static constexpr auto vjp(auto g, auto y, auto x, auto index) {
    const index_t dim = y.attribute(0);
    const attributes at{{dim, x.extents()[static_cast<int>(dim)]}, 2};
    return std::array{g.owner->template apply<scatter_sum>(at, index, g), no_gradient(g)};
  }
};

/// The compile-time error for operands of `scatter_add` whose shapes do not match.
template <bool Holds, class... Extents>
struct scatter_add_law {
  static_assert(Holds,
                "weft: scatter_add: indices and source must have the same extents, and those of the operand "
                "except along the dim");
};
/// The compile-time error for operands of `scatter_add` whose types do not match.
template <bool Holds, class... Types>
struct scatter_add_type_law {
  static_assert(Holds,
                "weft: scatter_add: indices must be i64, i32 or u8, and operand and source of one type, not "
                "bool");
};

/// Operand 0 with the elements of operand 2 added at the indices of operand 1 along dim v0.
struct scatter_add : composed<3> {
  static constexpr auto name = "scatter_add";
  template <bool Holds, class... Extents>
  using law = scatter_add_law<Holds, Extents...>;
  template <bool Holds, class... Types>
  using type_law = scatter_add_type_law<Holds, Types...>;

  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    const shape &x = operands[0].extents, &index = operands[1].extents, &source = operands[2].extents;
    inferred result{x.order == index.order && x.order == source.order, operands[0]};
    index_t same = 0;
    for (int i = 0; i < x.order && result.holds; ++i) {
      result.holds = dims.unify(index[i], source[i], same);
      if (i != at[0]) result.holds = result.holds && dims.unify(x[i], same, result.value.extents[i]);
    }
    result.types_fit = is_index(operands[1].type) && operands[0].type == operands[2].type &&
                       operands[0].type != dtype::boolean;
    return result;
  }
  static constexpr auto value(const attributes& at, auto x, auto index, auto source) {
    const attributes sum{{at[0], x.extents()[static_cast<int>(at[0])]}, 2};
    return x + x.owner->template apply<scatter_sum>(sum, index, source);
  }
};

/// The compile-time error for a dim without elements.
template <bool Holds, class... Extents>
struct arg_extremum_law {
  static_assert(Holds, "weft: argmax, argmin: the dim has no elements");
};

/// Position of the largest (v1 = 0) or smallest (v1 = 1) element along dim v0, which is removed; i64.
struct arg_extremum : rule<1> {
  static constexpr auto kind = op_kind::native;
  static constexpr const char* names[] = {"argmax", "argmin"};
  static constexpr auto name = "arg_extremum";
  static constexpr auto divides = "A! -> A-";
  static constexpr native_code code{.names = names, .named_by = 1, .op = native_op::arg_extremum};
  template <bool Holds, class... Extents>
  using law = arg_extremum_law<Holds, Extents...>;
  template <bool Holds, class... Types>
  using type_law = no_bool_law<Holds, Types...>;

  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    inferred result{dims.require_elements(operands[0].extents[static_cast<int>(at[0])]), {dtype::i64, {}},
                    operands[0].type != dtype::boolean};
    for (int i = 0; i < operands[0].extents.order; ++i)
      if (i != at[0]) result.value.extents.append(operands[0].extents[i]);
    return result;
  }
  static constexpr auto vjp(auto g, auto, auto) { return no_gradient(g); }
};

/// 1 where the position in the new last dim, of extent v0, equals the index, otherwise 0; f32.
struct one_hot : composed<1> {
  static constexpr auto name = "one_hot";
  template <bool Holds, class... Types>
  using type_law = index_type_law<Holds, Types...>;
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes& at, const tensor_spec* operands) {
    inferred result{true, {dtype::f32, operands[0].extents}};
    result.value.extents.append(at[0]);
    result.types_fit = is_index(operands[0].type);
    return result;
  }
  static constexpr auto value(const attributes& at, auto index) {
    shape s = index.extents();
    s.append(1);
    const attributes within{{at[0], static_cast<index_t>(index_reader::one_hot)}, 2};
    const auto hot = index.owner->template apply<checked_index>(within, index);
    return cast_to(weft::equal(index.owner->coordinate(at[0], dtype::i32), reshape_to(hot, s)), dtype::f32);
  }
};

}  // namespace weft::op

namespace weft {

/// Whether embedding accepts this table and these indices.
template <class Table, class Index>
concept embedding_compatible = accepts<op::index_select, attr<0>, Table, Index>;
/// Whether gather accepts these operands along dim Dim, counted from the left.
template <index_t Dim, class X, class Index>
concept gather_compatible = accepts<op::gather, attr<Dim>, X, Index>;

/// out[..., i, ...] = x[..., index[..., i, ...], ...] along dim Dim, as torch.gather, except that all other
/// extents must be equal. Indices are i64, i32 or u8 and have as many dims as `x`; the result has the shape
/// of `index` and the dtype of `x`. An index outside [0, extent) throws value_error at evaluation. The
/// derivative adds cotangents at their indices.
template <index_t Dim, expression X, expression Index>
constexpr auto gather(X x, Index index) {
  constexpr int dim = normalized_dim(Dim, X::static_shape.order);
  static_assert(dim < X::static_shape.order, "weft: gather: the dim is out of range");
  return apply<op::gather, attr<dim>>(std::move(x), std::move(index));
}

/// `x` plus the elements of `source`, added at their indices along dim Dim: torch.scatter_add. `index` and
/// `source` have the same shape, which equals that of `x` in all other dims. `x` and `source` have the same
/// dtype, not bool. An index outside [0, extent) throws value_error at evaluation. Differentiable in `x` and
/// `source`.
template <index_t Dim, expression X, expression Index, expression Source>
constexpr auto scatter_add(X x, Index index, Source source) {
  constexpr int dim = normalized_dim(Dim, X::static_shape.order);
  static_assert(dim < X::static_shape.order, "weft: scatter_add: the dim is out of range");
  return apply<op::scatter_add, attr<dim>>(std::move(x), std::move(index), std::move(source));
}

namespace detail {
/// `Which` is 0 for the position of the largest element, 1 for that of the smallest.
template <index_t Which, index_t... Dim, expression X>
constexpr auto position_of(X x) {
  static_assert(sizeof...(Dim) <= 1,
                "weft: argmax, argmin: give one dim, argmax<1>(x), or none for all elements");
  if constexpr (sizeof...(Dim) == 0) {
    return apply<op::arg_extremum, attr<0, Which>>(reshape<dyn>(std::move(x)));
  } else {
    constexpr int order = X::static_shape.order, dim = (normalized_dim(Dim, order) + ...);
    static_assert(dim < order, "weft: argmax, argmin: the dim is out of range for this operand");
    return apply<op::arg_extremum, attr<dim, Which>>(std::move(x));
  }
}
}  // namespace detail

/// Positions of the largest elements along dim Dim, which is removed, as i64; without Dim, the row-major
/// position among all elements, as a scalar. Ties: the lowest position. NaN counts as larger than every
/// number. Not defined for bool. A dim without elements does not compile if the extent is static, and throws
/// shape_error at evaluation if it is dynamic. No derivative.
template <index_t... Dim, expression X>
constexpr auto argmax(X x) {
  return detail::position_of<0, Dim...>(std::move(x));
}
/// The same, but dim Dim is kept with extent 1.
template <index_t Dim, expression X>
constexpr auto argmax(X x, keepdim_t) {
  return unsqueeze<normalized_dim(Dim, X::static_shape.order)>(argmax<Dim>(std::move(x)));
}
/// Positions of the smallest elements, otherwise as argmax; NaN counts as smaller than every number.
template <index_t... Dim, expression X>
constexpr auto argmin(X x) {
  return detail::position_of<1, Dim...>(std::move(x));
}
template <index_t Dim, expression X>
constexpr auto argmin(X x, keepdim_t) {
  return unsqueeze<normalized_dim(Dim, X::static_shape.order)>(argmin<Dim>(std::move(x)));
}

/// Rows of zeros with a one at the index: [...] -> [..., Classes], as f32 (i64 in PyTorch). An index outside
/// [0, Classes) throws value_error at evaluation. No derivative.
template <index_t Classes, expression Index>
constexpr auto one_hot(Index index) {
  static_assert(Classes > 0, "weft: one_hot: the number of classes must be positive");
  return apply<op::one_hot, attr<Classes>>(std::move(index));
}

/// The slices of `x` at the indices [N] along dim Dim, whose extent becomes N: torch.index_select. An index
/// outside [0, extent) throws value_error at evaluation. The derivative sums the cotangents of equal indices.
template <index_t Dim, expression X, expression Index>
constexpr auto index_select(X x, Index index) {
  constexpr int dim = normalized_dim(Dim, X::static_shape.order);
  static_assert(Index::static_shape.order == 1, "weft: index_select: indices must have one dim");
  static_assert(dim < X::static_shape.order, "weft: index_select: the dim is out of range");
  using reader = attr<static_cast<index_t>(index_reader::index_select)>;
  if constexpr (dim == 0) return apply<op::index_select, reader>(std::move(x), std::move(index));
  else
    return transpose<0, dim>(
        apply<op::index_select, reader>(transpose<0, dim>(std::move(x)), std::move(index)));
}

/// The padding index of an `embedding` without one.
inline constexpr index_t no_padding = -1;

/// Rows of `table` [V, ...] at `index` [...]: [V, C], [B, T] -> [B, T, C]. PyTorch's functional.embedding.
/// Indices are i64, i32 or u8; one outside [0, V) throws value_error at evaluation. The gradient of the table
/// is dense: zero in rows that no index selects, and in row `Padding` (PyTorch's padding_idx), which is read
/// like any other.
///   auto e = embedding<0>(table, tokens);        // short sequences are padded with token 0
template <index_t Padding = no_padding, expression Table, expression Index>
constexpr auto embedding(Table table, Index index) {
  constexpr auto reader = static_cast<index_t>(index_reader::embedding);
  if constexpr (Padding == no_padding) {
    return apply<op::index_select, attr<reader>>(std::move(table), std::move(index));
  } else {
    constexpr index_t rows = Table::static_shape.order > 0 ? Table::static_shape[0] : dyn;
    static_assert(Padding >= 0 && (rows < 0 || Padding < rows),
                  "weft: embedding: the padding index must be from 0 to V - 1");
    return apply<op::index_select, attr<reader, Padding>>(std::move(table), std::move(index));
  }
}

}  // namespace weft
