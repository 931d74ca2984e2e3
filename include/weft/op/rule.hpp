// SPDX-License-Identifier: MIT
// What an op must say, and what each kind of op says for it.
//
// An op is one struct: a name, a shape law, a value, a derivative. What varies by kind only is
// written here once; kernels, fusion, printing and law tests follow from the kind.
//
//   struct squash : op::elementwise<1> {                     // a formula: kernels come for free
//     static constexpr auto name = "squash";
//     static auto value(auto x) { return x / (1 + abs(x)); }
//   };
//
// `value` and `vjp` are called with graph values while the graph is built. vjp(g, y, x...) gives
// the cotangent of each operand from that of the result, g, and may read result and operands;
// what it does not read is not saved. docs/adding_an_op.md builds one step by step.
#pragma once

#include <array>

#include <weft/expr/apply.hpp>

namespace weft::op {

enum class op_kind : std::uint8_t {
  leaf,         // a tensor, or a number given at run time
  constant,     // a number known in the graph
  elementwise,  // one instruction of a fused kernel
  reduce,       // a fold along dims, inside a fused kernel
  view,         // other strides on the same memory
  copy,         // moves elements, computes nothing
  contraction,  // matmul
  native,       // a function of its own per device: look-ups, attention, user code
  result,       // second and later results of a native op
  composed      // a formula of other ops; gone before kernels are made
};

/// The sentence for operands that do not broadcast.
template <bool Holds, class... Extents>
struct broadcast_law {
  static_assert(Holds, "weft: operands must broadcast: aligned at the right, extents are equal "
                       "or one of them is 1 (the shapes are the extents<...> of this type)");
};

/// The sentence for operands of a wrong element type.
template <bool Holds, class... Types>
struct number_type_law {
  static_assert(Holds, "weft: wrong element type: this op does not take operands of the types "
                       "named in this type");
};

/// The sentence for bool where numbers are asked for.
template <bool Holds, class... Types>
struct no_bool_law {
  static_assert(Holds, "weft: this op is not for bool: use logical_not, logical_and, less or equal, or cast "
                       "to a number first");
};

/// Defaults that every op inherits.
template <int Arity>
struct rule {
  static constexpr int arity = Arity;
  static constexpr int results = 1;
  /// Which attributes are extents, as bits: those may be symbols while a program is compiled. The others are
  /// numbers of any sign, as the op defines them.
  static constexpr unsigned extents = 0;
  /// Whether the op computes with what its operands hold, rather than moving it: then operands of bf16 and
  /// f16 are widened to f32, those of u8 and (but for formulas) bool to i32, and the result is
  /// converted to its type at the end.
  static constexpr bool widens = false;
  template <bool Holds, class... Extents>
  using law = broadcast_law<Holds, Extents...>;
  template <bool Holds, class... Types>
  using type_law = number_type_law<Holds, Types...>;
};

constexpr dtype floating(dtype t) { return is_floating(t) ? t : dtype::f32; }

template <class Dims>
constexpr inferred broadcast_all(Dims& dims, const tensor_spec* operands, int count) {
  inferred result{true, operands[0]};
  for (int i = 1; i < count; ++i) {
    const inferred next = broadcast(dims, result.value.extents, operands[i].extents);
    result.holds = result.holds && next.holds;
    result.value.extents = next.value.extents;
    result.value.type = promoted(result.value.type, operands[i].type);
  }
  return result;
}

/// One instruction: `lane` is its value on vectors of lanes, `text` on the GPU.
template <int Arity>
struct primitive : rule<Arity> {
  static constexpr auto kind = op_kind::elementwise;
  static constexpr bool widens = true;
  /// The type operands are converted to, from their promoted type.
  static constexpr dtype operand_type(dtype t) { return t; }
  static constexpr dtype result_type(dtype t) { return t; }

  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes&, const tensor_spec* operands) {
    inferred result = broadcast_all(dims, operands, Arity);
    return result;
  }
};

/// An op on numbers, whose result has their promoted type: not on bool.
template <class Rule>
struct on_numbers : Rule {
  template <bool Holds, class... Types>
  using type_law = no_bool_law<Holds, Types...>;
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes&, const tensor_spec* operands) {
    inferred result = broadcast_all(dims, operands, Rule::arity);
    result.types_fit = result.value.type != dtype::boolean;
    return result;
  }
};

/// An element-wise formula over other ops. Give it a `vjp` only where the formula's own derivative
/// would be less exact or would keep more for backward.
template <int Arity>
struct elementwise : rule<Arity> {
  static constexpr auto kind = op_kind::composed;
  static constexpr bool widens = true;
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes&, const tensor_spec* operands) {
    inferred result = broadcast_all(dims, operands, Arity);
    result.value.type = floating(result.value.type);
    return result;
  }
};

/// A formula with a shape law of its own.
template <int Arity>
struct composed : rule<Arity> {
  static constexpr auto kind = op_kind::composed;
  static constexpr bool widens = true;
};

}  // namespace weft::op
