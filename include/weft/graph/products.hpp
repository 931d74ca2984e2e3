// SPDX-License-Identifier: MIT
// Products that are read only transposed are computed transposed: (a b)^T = b^T a^T, the same sums in the
// same order, without a copy. Gradients of weights stored as [out, in] are an example.
#pragma once

#include <weft/graph/rewrite.hpp>

namespace weft::graph {

namespace detail {

/// Whether a permutation swaps the last two dims and keeps the others.
constexpr bool transposes(const attributes& order) {
  const int n = order.count;
  for (int i = 0; i < n; ++i) {
    const int from = i + 2 < n ? i : 2 * n - 3 - i;
    if (order[i] != from) return false;
  }
  return n >= 2;
}

}  // namespace detail

/// `g` with products whose only reader transposes them replaced by the product of the transposed operands.
constexpr compute_graph with_transposed_products(const compute_graph& g) {
  const sequence<int> uses = uses_of(g);
  return rewritten(g, [&](compute_graph& to, const node& n, int i) {
    const bool only_reader = n.op == &info_of<op::permute> && uses[g[i].operand[0]] == 1;
    if (!only_reader || !detail::transposes(n.at)) return to.intern(n).id;
    const node product = to[n.operand[0]];
    if (product.op != &info_of<op::contract>) return to.intern(n).id;
    value operands[] = {transposed({&to, product.operand[1]}), transposed({&to, product.operand[0]})};
    return to.apply(*product.op, product.at, operands, 2).id;
  });
}

}  // namespace weft::graph
