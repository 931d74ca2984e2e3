// SPDX-License-Identifier: MIT
// Invariants of plans; see graph/verify.hpp.
#pragma once

#include <weft/graph/verify.hpp>
#include <weft/lower/plan.hpp>

namespace weft::lower {

namespace detail {
constexpr int result_of(const plan& p, int exchange) {
  return p.operands[p.steps[exchange].first_operand + p.steps[exchange].inputs];
}

/// Registers are written before they are read, and buffer indices are in range.
constexpr broken_promise verify_kernel(const plan& p, const kernel_entry& k, int arguments) {
  for (int i = 0; i < k.instructions; ++i) {
    const instruction w = instruction::decoded(p.instructions[k.first_instruction + i]);
    const bool reads_memory = w.op == load || w.op == load_row;
    const bool writes_memory = w.op == store || w.op == store_row || is_column_fold(w);
    if ((reads_memory || writes_memory) && w.a >= arguments)
      return {"a kernel's buffer index is out of range", i};
    if ((writes_memory || w.op == spill) && w.b >= i) return {"a kernel stores what it has not computed", i};
    if (w.op < first_opcode && (w.a >= i || w.b >= i || w.c >= i))
      return {"an instruction reads what comes later", i};
    if (is_row_fold(w) && w.a >= i) return {"a reduction reads what comes later", i};
    if (w.op == constant) ++i;
  }
  return {};
}
}  // namespace detail

/// Every value is computed once, before it is read, and is live as long as it is read; every output is
/// computed. Until an exchange arrives, nothing reads its result, and what its messages use is live; the
/// result of an exchange in slices is live from the product on.
constexpr broken_promise verify_plan(const plan& p) {
  sequence<int> computed_at(p.values.size(), -1);
  sequence<int> under_way;  // steps
  for (int t = 0; t < p.steps.size(); ++t) {
    const step_entry& s = p.steps[t];
    if (s.kind == step_kind::arrival) {
      const int arrived = p.operands[s.first_operand + s.inputs - 1];
      sequence<int> still;
      for (int e : under_way) {
        if (detail::result_of(p, e) != arrived) {
          still.push_back(e);
          continue;
        }
        const value_entry& sent = p.values[base_of(p, p.operands[p.steps[e].first_operand])];
        if (p.steps[e].native->messages == exchange::apart && sent.last_step < t)
          return {"messages use a value that is not live", t};
      }
      if (still.size() + 1 != under_way.size()) return {"what arrives was not sent", t};
      under_way = still;
    }
    for (int k = 0; k < s.inputs; ++k) {
      const int id = base_of(p, p.operands[s.first_operand + k]);
      const value_entry& v = p.values[id];
      if (v.where == storage::leaf) continue;
      if (v.where != storage::computed || computed_at[id] < 0)
        return {"a step reads what is not computed", t};
      for (int e : under_way)
        if (detail::result_of(p, e) == id) return {"a step reads what has not arrived", t};
      if (v.first_step > t || v.last_step < t) return {"a step reads a value that is not live", t};
    }
    for (int k = 0; k < s.outputs; ++k) {
      const int id = p.operands[s.first_operand + s.inputs + k];
      if (p.values[id].where != storage::computed)
        return {"a step writes memory that is not the program's", t};
      if (computed_at[id] >= 0) return {"a value is computed twice", t};
      computed_at[id] = t;
      if (s.kind == step_kind::exchange && is_started(s.native->messages)) under_way.push_back(t);
    }
    if (s.in_slices && p.values[detail::result_of(p, t + 1)].first_step > t)
      return {"messages in slices use a value that is not live", t};
    if (s.kind == step_kind::kernel)
      if (const broken_promise b = detail::verify_kernel(p, p.kernels[s.kernel], s.inputs + s.outputs))
        return b;
  }
  if (!under_way.empty()) return {"an exchange does not arrive", under_way[0]};
  for (int o : p.outputs)
    if (o >= 0 && computed_at[base_of(p, o)] < 0) return {"an output is not computed", o};
  return {};
}

}  // namespace weft::lower
