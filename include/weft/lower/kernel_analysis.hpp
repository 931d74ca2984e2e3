// SPDX-License-Identifier: MIT
// What a fused kernel computes in which sweep, and which values it keeps in memory between sweeps.
//
// A kernel runs over rows, and over each row in sweeps. A value that depends on the result of a row reduction
// can be computed in the sweep after it. Softmax x -> exp(x - max) / sum has levels
//
//   x - max, exp   1 (after the maximum)        sum of exp   2        the quotient   2
//
// and three sweeps: the maximum; exp and its sum; the quotient. exp is expensive, and the last sweep reads it
// again, so it is kept in a scratch row. Values with many operands are kept likewise.
#pragma once

#include <utility>

#include <weft/graph/fuse.hpp>
#include <weft/lower/code.hpp>

namespace weft::lower::detail {

using graph::compute_graph;
using graph::info_of;
using graph::kernel_group;
using graph::node;

/// The minimum number of operands in memory for which a value is kept in a scratch row.
inline constexpr int many_operands = 3;

/// Whether to keep a value in a scratch row and not recompute it.
constexpr bool is_expensive(const node& n) {
  return n.op == &info_of<op::exp> || n.op == &info_of<op::log> || n.op == &info_of<op::tanh> ||
         n.op == &info_of<op::erf> || n.op == &info_of<op::pow> || n.op == &info_of<op::log1p> ||
         n.op == &info_of<op::expm1> || n.op == &info_of<op::sin> || n.op == &info_of<op::cos> ||
         n.op == &info_of<op::atan> || n.op == &info_of<op::divide>;
}

/// A node of the graph as a kernel sees it.
struct kernel_value {
  bool is_computed = false;  // by this kernel; otherwise it is read from memory
  int level = 0;             // the number of sweeps that end before it can be computed
  int buffer = -1;           // where it is stored, if it is read outside
  int scratch_row = -1;      // where it is kept for later sweeps

  /// Whether the kernel writes it to memory.
  constexpr bool is_written() const { return is_computed && (buffer >= 0 || scratch_row >= 0); }
  /// Whether a sweep before `p` writes the value to memory.
  constexpr bool is_written_before(int p) const { return is_written() && level < p; }
};

/// The values of one kernel: `values` by node, and what it reads and writes.
class kernel_analysis {
 public:
  constexpr kernel_analysis(const compute_graph& g, const kernel_group& group,
                            const sequence<bool>& read_outside)
      : values(g.size(), {}), g_(g), group_(group) {
    for (int m : group.nodes) values[m].is_computed = true;
    find_levels();
    find_buffers(read_outside);
    for (int p = sweeps - 1; p > 0; --p) keep_for_sweep(p);
  }

  sequence<kernel_value> values;
  sequence<int> inputs, outputs;  // nodes, in the order of buffers
  int sweeps = 0, scratch_rows = 0;

  static constexpr bool is_fold(const node& n) { return n.op->kind == op::op_kind::reduce; }
  constexpr bool is_fold(int id) const { return is_fold(g_[id]); }
  constexpr bool folds_row(int id) const { return is_fold(id) && graph::detail::folds_last(g_, g_[id]); }
  constexpr bool is_number(int id) const { return g_[id].op->kind == op::op_kind::constant; }
  /// Whether a value has one element per row.
  constexpr bool is_of_row(int id) const { return !reads_rows_as_elements() && is_one_per_row(id); }
  /// Whether a value has one element per row, even if the kernel reads it for each element.
  constexpr bool is_one_per_row(int id) const {
    return g_[id].result.extents.last() == 1 && group_.space.last() != 1;
  }
  constexpr bool reads_rows_as_elements() const {
    return !group_.folds_rows && !group_.folds_columns && graph::detail::has_short_rows(group_.space);
  }
  /// The sweep in which a value of the kernel is computed. A fold over rows reaches its level after its
  /// sweep.
  constexpr int sweep_of(int id) const { return values[id].level - folds_row(id); }
  /// Whether sweep `p` computes element `id`, for the first time or again, and does not read it.
  constexpr bool computes(int p, int id) const {
    const kernel_value& v = values[id];
    return v.is_computed && !is_of_row(id) && !is_fold(id) && !v.is_written_before(p);
  }

  /// Calls f(id) for each value for which sweep `p` exists: operands of its folds, and values that it stores.
  template <class F>
  constexpr void for_each_target(int p, F f) const {
    for (int m : group_.nodes) {
      if (sweep_of(m) != p) continue;
      if (is_fold(m)) f(g_[m].operand[0]);
      else if (!is_of_row(m) && values[m].is_written()) f(stored_from(m));
    }
  }
  /// Calls f(id) for each value on which those depend, before its operands; f returns whether to visit these.
  template <class F>
  constexpr void for_each_below_targets(int p, F f) const {
    sequence<bool> seen(g_.size(), false);
    for_each_target(p, [&](int target) { visit(target, seen, f); });
  }

  /// The value to be stored as `id`: the operand of a cast that rounds as stores do, otherwise `id`.
  constexpr int stored_from(int id) const {
    const node& n = g_[id];
    if (n.op != &info_of<op::cast>) return id;
    const dtype from = g_[n.operand[0]].result.type;
    return is_storage(n.result.type) && from == compute_type(n.result.type) ? n.operand[0] : id;
  }

 private:
  template <class F>
  constexpr void visit(int id, sequence<bool>& seen, F& f) const {
    if (std::exchange(seen[id], true) || !f(id)) return;
    for (int k = 0; k < g_[id].operands; ++k) visit(g_[id].operand[k], seen, f);
  }

  constexpr void find_levels() {
    for (int m : group_.nodes) {
      int level = 0;
      for (int k = 0; k < g_[m].operands; ++k)
        if (const kernel_value& o = values[g_[m].operand[k]]; o.is_computed && o.level > level)
          level = o.level;
      const bool needs_sweep = is_fold(m) || !is_of_row(m);
      if (level + needs_sweep > sweeps) sweeps = level + needs_sweep;
      values[m].level = level + folds_row(m);
    }
  }

  constexpr void find_buffers(const sequence<bool>& read_outside) {
    for (int m : group_.nodes)
      for (int k = 0; k < g_[m].operands; ++k) {
        const int o = g_[m].operand[k];
        const bool is_read = !values[o].is_computed && !is_number(o) && g_[o].op != &info_of<op::coordinate>;
        if (is_read && values[o].buffer < 0) {
          values[o].buffer = inputs.size();
          inputs.push_back(o);
        }
      }
    for (int m : group_.nodes)
      if (read_outside[m]) {
        values[m].buffer = inputs.size() + outputs.size();
        outputs.push_back(m);
      }
  }

  /// Values of earlier sweeps that sweep `p` reads get a scratch row if they are expensive or have many
  /// operands in memory.
  constexpr void keep_for_sweep(int p) {
    for_each_below_targets(p, [&](int id) {
      if (!computes(p, id)) return false;
      if (values[id].level == p || !(is_expensive(g_[id]) || loads_of(p, id) >= many_operands)) return true;
      values[id].scratch_row = scratch_rows++;
      return false;
    });
  }

  /// How many elements sweep `p` reads from memory to compute element `id`.
  constexpr int loads_of(int p, int id) const {
    sequence<bool> seen(g_.size(), false);
    int loads = 0;
    const auto count = [&](int below) {
      const bool is_element = !is_number(below) && !is_of_row(below) && !is_fold(below) &&
                              g_[below].op != &info_of<op::coordinate>;
      loads += is_element && !computes(p, below);
      return computes(p, below);
    };
    visit(id, seen, count);
    return loads;
  }

  const compute_graph& g_;
  const kernel_group& group_;
};

}  // namespace weft::lower::detail
