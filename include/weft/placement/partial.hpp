// SPDX-License-Identifier: MIT
// Which ops may be applied to each rank's summand instead of to the sum over ranks.
//
// Only ops that are linear in all of their partial operands. A sum times a whole tensor would qualify too,
// but then partial sums would pass through whole norms in the backward pass, and the norms' gradients would
// have to be summed again.
#pragma once

#include <weft/graph/rewrite.hpp>

namespace weft::graph::detail {

/// Whether the op applied to the summands (or maxima) of its partial operands gives the summand (or maximum)
/// of its result, so that they need not be reduced before. `p`: the placements of the operands, at least one
/// of which is partial.
constexpr bool passes_partial(const compute_graph& g, const node& n, const sequence<placement>& p) {
  int partial = 0;
  bool same_kind = true, numbers = true;
  placed kind = placed::sum;
  for (int k = 0; k < n.operands; ++k)
    if (p[k].is_partial()) kind = p[k].kind;
  for (int k = 0; k < n.operands; ++k) {
    same_kind = same_kind && p[k].kind == kind;
    if (p[k].is_partial()) ++partial;
    else numbers = numbers && p[k].kind == placed::whole && g[n.operand[k]].result.extents.order == 0;
  }
  if (n.op->kind == op::op_kind::view || n.op == &info_of<op::contiguous>) return true;
  if (n.op == &info_of<op::reduce_max>) return kind == placed::maximum;
  if (kind == placed::maximum) return false;
  if (n.op == &info_of<op::add> || n.op == &info_of<op::subtract> || n.op == &info_of<op::concat>)
    return same_kind;
  if (n.op == &info_of<op::negate> || n.op == &info_of<op::reduce_sum> || n.op == &info_of<op::pad>)
    return true;
  if (n.op == &info_of<op::cast>) return is_floating(n.result.type);
  if (n.op == &info_of<op::multiply>) return partial == 1 && numbers;
  if (n.op == &info_of<op::divide>) return p[0].is_partial() && partial == 1 && numbers;
  return n.op == &info_of<op::index_add> && partial == 1 && p[0].kind == placed::whole;
}

}  // namespace weft::graph::detail
