// SPDX-License-Identifier: MIT
// Matrix multiplication with any batch dims; transposed operands are read in place.
//
//   matmul(x, w)                 // [B, T, K] x [K, N] -> [B, T, N]
//   matmul(q, transpose(k))      // no copy: the kernel reads k by its strides
#pragma once

#include <weft/op/movement.hpp>
#include <weft/op/rule.hpp>

namespace weft::op {

/// The compile-time error for operands of `matmul` whose shapes do not match.
template <bool Holds, class A, class B>
struct matmul_law {
  static_assert(Holds, "weft: matmul: the last extent of the left operand must equal the "
                       "second-to-last extent of the right one, and batch dims must broadcast");
};
/// The compile-time error for operands of `matmul` that do not have the same floating type.
template <bool Holds, class A, class B>
struct matmul_type_law {
  static_assert(Holds, "weft: matmul: both operands must have the same floating type");
};

/// [batch, M, K] x [batch, K, N] with equal batch extents: the form that kernels implement. v0, if given, is
/// the dtype of the result, for sums that must not be rounded to the type of the operands.
struct contract : rule<2> {
  static constexpr auto kind = op_kind::contraction;
  static constexpr auto name = "contract";
  static constexpr auto divides = "Bmk Bkn -> Bmn";
  static constexpr native_code code{.op = native_op::product};
  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes& at, const tensor_spec* operands) {
    inferred result = matmul_shape(dims, operands[0].extents, operands[1].extents);
    result.value.type = at.count ? static_cast<dtype>(at[0]) : operands[0].type;
    result.types_fit = operands[0].type == operands[1].type;
    return result;
  }
  static constexpr auto vjp(auto g, auto, auto a, auto b) {
    const auto c = cast_to(g, a.type());
    return std::array{cotangent(a, c, transposed(b)), cotangent(b, transposed(a), c)};
  }
  /// The product of a and b, in f32 if they are bf16 or f16: to be summed first and rounded afterwards.
  static constexpr auto wide_product(auto a, auto b) {
    if (!is_narrow(a.type())) return contract_of(a, b);
    return a.owner->template apply<contract>(attributes{{static_cast<index_t>(dtype::f32)}, 1}, a, b);
  }

 private:
  /// The product of a and b as the cotangent of `operand`.
  static constexpr auto cotangent(auto operand, auto a, auto b) {
    return has_wide_cotangent(operand) ? wide_product(a, b) : contract_of(a, b);
  }
};

/// Matrix product with batch dims, lowered to `contract`.
struct matmul : rule<2> {
  static constexpr auto kind = op_kind::composed;
  static constexpr auto name = "matmul";
  template <bool Holds, class... Extents>
  using law = matmul_law<Holds, Extents...>;
  template <bool Holds, class... Types>
  using type_law = matmul_type_law<Holds, Types...>;

  template <class Dims>
  static constexpr inferred infer(Dims& dims, const attributes&, const tensor_spec* operands) {
    inferred result = matmul_shape(dims, operands[0].extents, operands[1].extents);
    result.value.type = operands[0].type;
    result.types_fit = operands[0].type == operands[1].type && is_floating(operands[0].type);
    return result;
  }
  /// With a matrix on the right, all rows on the left form one matrix; otherwise batch dims are expanded to
  /// each other.
  static constexpr auto value(auto a, auto b) {
    const shape left = a.extents(), right = b.extents();
    if (right.order == 2 && left.order > 2) {
      const auto rows = merge_leading(a, 2);
      shape result = left;
      result[left.order - 1] = right[1];
      return reshape_to(contract_of(rows, b), result);
    }
    return contract_of(expand_batch(a, b), expand_batch(b, a));
  }
};

}  // namespace weft::op

namespace weft {

namespace detail {
/// A vector on the left of a product is a row; a vector on the right is a column.
template <expression A>
constexpr auto left_matrix(A a) {
  if constexpr (A::static_shape.order == 1) return unsqueeze<0>(std::move(a));
  else return a;
}
template <expression B>
constexpr auto right_matrix(B b) {
  if constexpr (B::static_shape.order == 1) return unsqueeze<1>(std::move(b));
  else return b;
}
}  // namespace detail

/// Whether matmul accepts these operands.
template <class A, class B>
concept matmul_compatible =
    expression<A> && expression<B> &&
    accepts<op::matmul, attr<>, decltype(detail::left_matrix(std::declval<A>())),
            decltype(detail::right_matrix(std::declval<B>()))>;

/// Matrix product over the last two dims, as torch.matmul: [..., M, K] x [..., K, N] -> [..., M, N]; batch
/// dims broadcast. A vector [K] is a row on the left and a column on the right, and that dim is dropped from
/// the result: [..., M, K] x [K] -> [..., M], [K] x [..., K, N] -> [..., N], [K] x [K] -> []. Both operands
/// have the same floating type; for bf16 and f16, sums are accumulated in f32 and rounded once. Static
/// extents that do not match do not compile; dynamic ones throw shape_error at evaluation. Transposed
/// operands are read by their strides, without a copy. Cost: 2 M N K operations per batch element.
template <expression A, expression B>
constexpr auto matmul(A a, B b) {
  constexpr bool row = A::static_shape.order == 1, column = B::static_shape.order == 1;
  auto product =
      apply<op::matmul>(detail::left_matrix(std::move(a)), detail::right_matrix(std::move(b)));
  if constexpr (row && column) return reshape<>(std::move(product));
  else if constexpr (row || column) return flatten<-2, -1>(std::move(product));
  else return product;
}

}  // namespace weft
