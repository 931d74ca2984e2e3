// SPDX-License-Identifier: MIT
// The definition of an op, and the defaults of each kind of op.
//
// An op is one struct: name, shape law, value, derivative. What depends only on its kind is written here
// once; kernels, fusion, printing and law tests follow from the kind.
//
//   struct squash : op::elementwise<1> {                     // a formula: kernels are generated
//     static constexpr auto name = "squash";
//     static auto value(auto x) { return x / (1 + abs(x)); }
//   };
//
// `value` and `vjp` are called with graph values while the graph is built. vjp(g, y, x...) returns the
// cotangent of each operand from g, the cotangent of the result; it may read the result y and the operands x,
// and what it does not read is not saved. docs/adding_an_op.md builds one step by step.
#pragma once

#include <array>

#include <weft/device/native.hpp>
#include <weft/expr/apply.hpp>

namespace weft::op {

/// How an op is executed, which determines how fusion and lowering treat it.
enum class op_kind : std::uint8_t {
  leaf,         // a tensor, or a number given at run time
  constant,     // a number known in the graph
  elementwise,  // one instruction of a fused kernel
  reduce,       // a reduction along dims, inside a fused kernel
  view,         // other strides on the same memory
  copy,         // moves elements, computes nothing
  contraction,  // matmul
  native,       // a function per device: indexing, attention, user code
  result,       // second and later results of a native op
  composed      // a formula over other ops; expanded before kernels are generated
};

/// The compile-time error for operands that do not broadcast.
template <bool Holds, class... Extents>
struct broadcast_law {
  static_assert(Holds, "weft: operands must broadcast: aligned at the right, extents are equal "
                       "or one of them is 1 (the shapes are the extents<...> of this type)");
};

/// The compile-time error for operands of a wrong element type.
template <bool Holds, class... Types>
struct number_type_law {
  static_assert(Holds, "weft: wrong element type: this op does not take operands of the types "
                       "named in this type");
};

/// The compile-time error for bool operands of a numeric op.
template <bool Holds, class... Types>
struct no_bool_law {
  static_assert(Holds,
                "weft: this op does not support bool: use logical_not, logical_and, less or equal, or cast "
                "to a number first");
};

/// Defaults that every op inherits.
template <int Arity>
struct rule {
  static constexpr int arity = Arity;
  static constexpr int results = 1;
  /// The number of results whose cotangents vjp takes; if more than one, as an array.
  static constexpr int cotangents = 1;
  /// The attributes that are extents, as bits: these can be symbols while a program is compiled. The others
  /// are numbers whose meaning the op defines.
  static constexpr unsigned extents = 0;
  /// Whether the op computes with the values of its operands and does not only move them. If so, operands of
  /// bf16 and f16 are widened to f32, those of u8 and (except in formulas) bool to i32, and the result is
  /// converted to its type at the end.
  static constexpr bool widens = false;
  /// For a formula that widens: whether integers are first converted to the floating type of its result.
  static constexpr bool in_floats = false;
  // An op of kind native may state which dims ranks can divide (placement/shared_dims.hpp), as in einsum:
  //   static constexpr auto divides = "b.h. b.h. -> b.h.";      // batch elements or heads, nothing else
  // Each rank then computes the op on its parts. Without it, every rank computes it on whole operands.
  template <bool Holds, class... Extents>
  using law = broadcast_law<Holds, Extents...>;
  template <bool Holds, class... Types>
  using type_law = number_type_law<Holds, Types...>;
};

/// `t` if it is floating, otherwise f32: the result type of ops on floating numbers.
constexpr dtype floating(dtype t) { return is_floating(t) ? t : dtype::f32; }

/// The shape law of element-wise ops: the broadcast shape and the promoted type of `count` operands.
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

/// An op that is one instruction: `lane` computes it on vectors of lanes, `text` is its GPU source.
template <int Arity>
struct primitive : rule<Arity> {
  static constexpr auto kind = op_kind::elementwise;
  static constexpr bool widens = true;
  /// The type to which operands are converted, given their promoted type.
  static constexpr dtype operand_type(dtype t) { return t; }
  static constexpr dtype result_type(dtype t) { return t; }

  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes&, const tensor_spec* operands) {
    inferred result = broadcast_all(dims, operands, Arity);
    return result;
  }
};

/// Restricts `Rule` to operands other than bool; the result has their promoted type.
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

/// An element-wise formula over other ops. Define `vjp` only where the derivative of the formula would be
/// less accurate or would save more for the backward pass.
template <int Arity>
struct elementwise : rule<Arity> {
  static constexpr auto kind = op_kind::composed;
  static constexpr bool widens = true, in_floats = true;
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes&, const tensor_spec* operands) {
    inferred result = broadcast_all(dims, operands, Arity);
    result.value.type = floating(result.value.type);
    return result;
  }
};

/// The compile-time error for operands that an op of one shape does not broadcast.
template <bool Holds, class... Extents>
struct same_shape_law {
  static_assert(Holds,
                "weft: the first two operands must have the same shape (the shapes are the "
                "extents<...> of this type)");
};

/// An element-wise formula whose operands 0 and 1 have the same shape and do not broadcast.
template <int Arity>
struct of_one_shape : elementwise<Arity> {
  template <bool Holds, class... Extents>
  using law = same_shape_law<Holds, Extents...>;
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    const shape &a = operands[0].extents, &b = operands[1].extents;
    bool same = a.order == b.order;
    index_t common = 0;
    for (int i = 0; i < a.order && same; ++i) same = dims.unify(a[i], b[i], common);
    inferred result = elementwise<Arity>::infer(dims, at, operands);
    result.holds = result.holds && same;
    return result;
  }
};

/// The product of operands of one shape.
struct product_of_one_shape : of_one_shape<2> {
  static constexpr auto value(auto a, auto b) { return a * b; }
};
/// The same for the difference.
struct difference_of_one_shape : of_one_shape<2> {
  static constexpr auto value(auto a, auto b) { return a - b; }
};

/// The name of an op as a template argument, at most 23 characters.
struct op_name {
  char text[24]{};
  template <std::size_t N>
  consteval op_name(const char (&of)[N]) {
    for (std::size_t i = 0; i < N; ++i) text[i] = of[i];
  }
};

/// The product of operands of one shape within a formula that users know as `Name`; Law is its compile-time
/// error.
///   apply<op::product_of<"vjp">>(y, v)
template <op_name Name, template <bool, class...> class Law = same_shape_law>
struct product_of : product_of_one_shape {
  static constexpr const char* name = Name.text;
  template <bool Holds, class... Extents>
  using law = Law<Holds, Extents...>;
};
/// The same for the difference.
template <op_name Name, template <bool, class...> class Law = same_shape_law>
struct difference_of : difference_of_one_shape {
  static constexpr const char* name = Name.text;
  template <bool Holds, class... Extents>
  using law = Law<Holds, Extents...>;
};

/// A formula with its own shape law.
template <int Arity>
struct composed : rule<Arity> {
  static constexpr auto kind = op_kind::composed;
  static constexpr bool widens = true;
};

/// Base of ops that only check the shapes of two operands. The value is operand 0; nothing is computed.
struct requirement : composed<2> {
  static constexpr bool widens = false;
  static constexpr auto value(auto x, auto) { return x; }
};

}  // namespace weft::op
