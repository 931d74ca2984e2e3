// SPDX-License-Identifier: MIT
// A linear head and its cross-entropy, some rows at a time: all logits never exist at once.
//
//   auto loss = steps.eval(linear_cross_entropy(x, weight, labels));     // torch's linear_cross_entropy
//
// Logits of large vocabularies are the largest tensors of a language model: [B, T, V] and once more
// for their gradient. Here a slice of rows is computed forward and at once backward, and its logits
// go before the next slice comes. Where all fit into a slice it is a statement as any other.
#pragma once

#include <algorithm>

#include <weft/op/loss.hpp>
#include <weft/op/movement.hpp>
#include <weft/run/boundary.hpp>

namespace weft {

/// How many logits linear_cross_entropy computes at once: 64 MB in f32.
inline constexpr index_t logits_at_once = index_t{1} << 24;

/// Mean cross-entropy of x W^T for x [..., In], W [V, In] and integer labels [...] that are not `Ignore`. A
/// statement of its own: not to be used inside `grad`. Of bf16 and f16 logits are rounded, labels are counted
/// and losses added up in f32, and the mean is rounded.
template <index_t Ignore = ignored_label, expression X, class W, expression Y>
auto linear_cross_entropy(X x, const W& weight, Y labels, index_t at_once = logits_at_once) {
  if (at_once < 1)
    throw value_error("weft: linear_cross_entropy: " + std::to_string(at_once) + " logits at once");
  using T = typename X::value_type;
  using S = slice_sum<T>;
  const auto of_rows = [weight](auto rows, auto row_labels) {
    auto logits = matmul(rows, transpose(weight));
    return cross_entropy<reduction_kind::sum, Ignore>(detail::in_type<S>(std::move(logits)), row_labels);
  };
  const index_t rows = std::max<index_t>(1, at_once / std::max<index_t>(1, weight.extents()[0]));
  auto matrix = [&] {
    if constexpr (X::static_shape.order == 2) return std::move(x);
    else return flatten<0, X::static_shape.order - 2>(std::move(x));
  }();
  auto counted = apply<op::count_labels, attr<Ignore, static_cast<index_t>(dtype_of<S>)>>(labels);
  using slices = slices_node<decltype(of_rows), decltype(matrix), Y>;
  auto sum = slices{{}, std::move(matrix), std::move(labels), of_rows, rows};
  return detail::in_type<T>(std::move(sum) / std::move(counted));
}

}  // namespace weft
