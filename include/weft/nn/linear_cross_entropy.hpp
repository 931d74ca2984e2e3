// SPDX-License-Identifier: MIT
// A linear layer and its cross-entropy, computed for some rows at a time, so that the logits of all rows
// never exist at once.
//
//   auto loss = steps.eval(linear_cross_entropy(x, weight, labels));     // torch's linear_cross_entropy
//
// The logits [B, T, V] of a large vocabulary and their gradient are the largest tensors of a language model.
// Here the forward and backward passes of a slice of rows are computed together, and its logits are freed
// before the next slice. If all rows fit into one slice, this is an ordinary statement.
#pragma once

#include <algorithm>

#include <weft/op/elementwise.hpp>
#include <weft/op/loss.hpp>
#include <weft/op/movement.hpp>
#include <weft/run/boundary.hpp>

namespace weft {

namespace detail {
/// The compile-time error for labels whose shape does not match that of the operand.
template <bool Holds, class... Extents>
struct linear_cross_entropy_law {
  static_assert(Holds, "weft: linear_cross_entropy: labels must have the shape of x without its last dim");
};

/// The sum of the cross-entropies of some rows, in the type S.
template <index_t Ignore, class S, class W>
struct cross_entropy_of_rows {
  W weight;
  template <expression Rows, expression Labels>
  auto operator()(Rows rows, Labels labels) const {
    auto logits = matmul(rows, transpose(weight));
    return cross_entropy<reduction_kind::sum, Ignore>(in_type<S>(std::move(logits)), labels);
  }
  /// The same, with the elements of the weight taken from `copy`.
  template <expression Copy>
  auto rounded(Copy copy) const {
    auto read = apply<op::rounded_before>(weight, std::move(copy));
    return cross_entropy_of_rows<Ignore, S, decltype(read)>{std::move(read)};
  }
};
}  // namespace detail

/// Mean cross-entropy of the logits x W^T, for x [..., In], W [V, In] and integer labels [...]; rows whose
/// label is `Ignore` do not count. At most about `at_once` logits exist at a time. Must be a statement of its
/// own, and cannot be inside `grad`. With bf16 and f16, logits are rounded to that type, losses are summed
/// and labels counted in f32, and the mean is rounded. If products round an f32 weight (mixed precision), all
/// slices read one rounded copy, which is kept until the last of them is done. Throws value_error if
/// `at_once` is less than 1, and at evaluation for a label out of range; shape_error if there are not as many
/// labels as rows; static shapes that do not match do not compile.
template <index_t Ignore = ignored_label, expression X, class W, expression Y>
auto linear_cross_entropy(X x, const W& weight, Y labels, index_t at_once) {
  if (at_once < 1)
    refuse<value_error>({"weft: linear_cross_entropy: ", at_once, " logits at once: expected 1 or more"});
  constexpr bool fits = node<op::cross_entropy, attr<Ignore, 0>, X, Y>::law.holds;
  (void)sizeof(detail::linear_cross_entropy_law<fits, extents_of<X>, extents_of<Y>>);
  using T = typename X::value_type;
  using S = slice_sum<T>;
  const detail::cross_entropy_of_rows<Ignore, S, W> of_rows{detail::as_written(weight)};
  const index_t rows = std::max<index_t>(1, at_once / std::max<index_t>(1, weight.extents()[0]));
  auto matrix = [&] {
    if constexpr (X::static_shape.order == 2) return detail::as_written(std::move(x));
    else return flatten<0, X::static_shape.order - 2>(std::move(x));
  }();
  auto counted = apply<op::count_labels, attr<Ignore, static_cast<index_t>(dtype_of<S>)>>(labels);
  using slices = slices_node<detail::cross_entropy_of_rows<Ignore, S, W>, decltype(matrix), Y>;
  auto sum = slices{{}, std::move(matrix), detail::as_written(std::move(labels)), of_rows, rows};
  return detail::in_type<T>(std::move(sum) / std::move(counted));
}
/// The same, with the number of logits at a time chosen for the device of `weight`: 64 MB in f32 on CPUs, 512
/// MB on GPUs (backend::elements_at_once).
template <index_t Ignore = ignored_label, expression X, class W, expression Y>
auto linear_cross_entropy(X x, const W& weight, Y labels) {
  return linear_cross_entropy<Ignore>(std::move(x), weight, std::move(labels),
                                      weight.state()->where->elements_at_once());
}

}  // namespace weft
