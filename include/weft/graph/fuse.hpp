// SPDX-License-Identifier: MIT
// Fusion: which nodes share a kernel.
//
// A group runs over one space, rows times the last dim. It contains element-wise nodes of that shape,
// reductions of the last dim, and row values computed from such reductions: softmax, a norm, or a chain of
// activations is one group. A reduction of other dims ends its group. A reduction of all rows that no other
// node reads joins a group that reads or computes the same elements: for example, the gradient of a norm's
// weight joins that of the norm's operand, and the gradient of a bias that of the activation that follows it.
// A group stores the values that are read outside it, so nothing is computed twice.
#pragma once

#include <weft/device/kernel.hpp>
#include <weft/graph/views.hpp>

namespace weft::graph {

/// Maximum number of nodes of a kernel: the largest kernel in the derivative of a transformer block in bf16
/// has 44 nodes, with dropout 47. Larger kernels cost compile time and registers.
inline constexpr int max_group = 48;

/// The nodes of one kernel and the space over which it runs.
struct kernel_group {
  shape space{};
  bool folds_rows = false;     // contains a reduction of the last dim
  bool folds_columns = false;  // ends in a reduction of other dims, or some have joined it
  sequence<int> nodes;         // in order
};

/// The assignment of nodes to kernels.
struct fusion {
  sequence<int> group_of;  // by node; -1 for nodes that are not fused
  sequence<kernel_group> groups;
};

namespace detail {

constexpr bool fuses(const node& n) {
  return (n.op->kind == op::op_kind::elementwise && n.op != &info_of<op::coordinate>) ||
         n.op->kind == op::op_kind::reduce;
}

constexpr bool folds_last(const compute_graph& g, const node& n) {
  return n.at[1] == g[n.operand[0]].result.extents.order;
}

/// Whether a reduction keeps only the last dim.
constexpr bool folds_all_rows(const compute_graph& g, const node& n) {
  return n.at[0] == 0 && n.at[1] == g[n.operand[0]].result.extents.order - 1;
}

/// Whether operand `id` of `n` is a concat along the same dim with no other reader, so that one step can copy
/// the parts of both.
constexpr bool is_part_of_concat(const compute_graph& g, const sequence<int>& uses, const node& n, int id) {
  return n.op == &info_of<op::concat> && g[id].op == n.op && g[id].at == n.at && uses[id] == 1;
}

/// Whether rows are so short that a vector holds elements of several rows: kernels over elements then read
/// row values once per element, and compute none.
constexpr bool has_short_rows(const shape& space) { return 1 < space.last() && space.last() <= 8; }

constexpr shape row_shape(shape s) {
  if (s.order) s[s.order - 1] = 1;
  return s;
}

class fuser {
 public:
  constexpr explicit fuser(const compute_graph& g)
      : g_(g), level_(g.size(), 0), uses_(uses_of(g)), inner_uses_(g.size(), 0), mark_(g.size(), 0) {
    result_.group_of = sequence<int>(g.size(), -1);
  }

  constexpr fusion run() {
    for (int i = 0; i < g_.size(); ++i) place(i);
    sink();
    join_columns();
    return compacted();
  }

 private:
  static constexpr int none = -1;  // no group

  /// Adds node `i` to the group of its latest operands if one kernel can hold all of them.
  ///
  /// A group, or a node that does not fuse, has a level one above those that it reads, so groups of one level
  /// never depend on each other, and merging them cannot create a cycle. In exp(a) + relu(b), where a and b
  /// are products, both products have level 1; exp and relu are groups of level 2, which the sum merges and
  /// joins. In exp(a) + matmul(c, relu(a)) the latest operand of the sum is a product, which is in no kernel:
  /// the sum is a group of its own, into which sink() merges exp, because no other group reads exp.
  constexpr void place(int i) {
    const node& n = g_[i];
    const int latest = latest_level(n);
    if (!fuses(n)) {
      const bool computes = n.op->kind != op::op_kind::view && n.op->kind != op::op_kind::result;
      level_[i] = n.operands == 0 ? 0 : latest + computes;
      return;
    }
    kernel_group own = group_of_one(i);
    const int joined = group_to_join(n, latest, own);
    const int number = result_.groups.size();
    result_.group_of[i] = number;
    result_.groups.push_back(own);
    level_[i] = joined == none ? latest + 1 : latest;
    if (joined != none) merge(joined, number);
  }

  constexpr int latest_level(const node& n) const {
    int latest = 0;
    for (int k = 0; k < n.operands; ++k) {
      const int o = n.operand[k], level = level_[o] - is_part_of_concat(g_, uses_, n, o);
      if (level > latest) latest = level;
    }
    return latest;
  }

  constexpr kernel_group group_of_one(int i) const {
    const node& n = g_[i];
    kernel_group own;
    own.nodes.push_back(i);
    own.space = n.result.extents;
    if (n.op->kind == op::op_kind::reduce) {
      own.space = g_[n.operand[0]].result.extents;
      (folds_last(g_, n) ? own.folds_rows : own.folds_columns) = true;
    }
    return own;
  }

  /// The group of all operands of level `latest`, which are merged, if one kernel can hold it together with
  /// `own`.
  constexpr int group_to_join(const node& n, int latest, const kernel_group& own) {
    if (latest == 0 || own.folds_columns) return none;
    int joined = none;
    for (int k = 0; k < n.operands; ++k) {
      if (level_[n.operand[k]] < latest) continue;
      const int group = result_.group_of[n.operand[k]];
      if (group == none || !compatible(result_.groups[group], own)) return none;
      if (joined == none) joined = group;
      else if (group != joined && compatible(result_.groups[joined], result_.groups[group]))
        merge(joined, group);
    }
    // Groups that have been merged may leave no room for the node.
    const bool has_room = joined != none && result_.groups[joined].nodes.size() < max_group;
    return has_room && all_latest_in(n, latest, joined) ? joined : none;
  }

  constexpr bool all_latest_in(const node& n, int latest, int group) const {
    for (int k = 0; k < n.operands; ++k) {
      const int from = n.operand[k];
      if (level_[from] == latest && result_.group_of[from] != group) return false;
    }
    return true;
  }

  /// Merges a group into another one that is its only reader, even if its values are outputs; such a group
  /// may take reductions of columns instead, in join_columns.
  constexpr void sink() {
    constexpr int several = -2;
    sequence<int> reader(g_.size(), none);  // by node: the only group that reads it
    const auto read_by = [&](int i, int group) {
      reader[i] = reader[i] == none || reader[i] == group ? group : several;
    };
    for (int i = g_.size(); i-- > 0;) {
      const int own = result_.group_of[i];
      for (int k = 0; k < g_[i].operands; ++k)
        if (own < 0 || result_.group_of[g_[i].operand[k]] != own)
          read_by(g_[i].operand[k], own >= 0 ? own : several);
      if (own < 0 || result_.groups[own].nodes[0] != i) continue;
      int only = none;
      for (int m : result_.groups[own].nodes) {
        if (reader[m] == none || reader[m] == own) continue;
        only = only == none || only == reader[m] ? reader[m] : several;
      }
      if (only < 0 || !compatible(result_.groups[own], result_.groups[only])) continue;
      if (result_.groups[only].folds_columns && has_output(result_.groups[own])) continue;
      for (int m : result_.groups[own].nodes)
        for (int k = 0; k < g_[m].operands; ++k)
          if (reader[g_[m].operand[k]] == own) reader[g_[m].operand[k]] = only;
      merge(only, own);
    }
  }

  constexpr bool has_output(const kernel_group& group) const {
    for (int m : group.nodes)
      if (g_.outputs.contains(m)) return true;
    return false;
  }

  constexpr bool compatible(const kernel_group& a, const kernel_group& b) {
    if (a.folds_columns || !can_be_one(a, b)) return false;
    if (b.folds_columns) return !a.folds_rows && a.space == b.space;
    const shape& space = a.space.last() == 1 ? b.space : a.space;
    const bool of_rows = a.folds_rows || b.folds_rows || !has_short_rows(space);
    return fits(a, space, of_rows) && fits(b, space, of_rows);
  }

  /// Merges reductions of columns that no node reads into groups over the same elements, if possible into one
  /// that computes an operand, which then need not be stored.
  constexpr void join_columns() {
    const int groups = result_.groups.size();
    sequence<bool> is_read(g_.size(), false);  // by nodes other than views
    for (int i = 0; i < g_.size(); ++i) {
      if (g_[i].op->kind == op::op_kind::view) continue;
      for (int k = 0; k < g_[i].operands; ++k) is_read[base_of(g_, g_[i].operand[k])] = true;
    }
    sequence<int> levels(groups, 0);  // without the reductions that join
    sequence<bool> ends_in_columns(groups, false);
    for (int k = 0; k < groups; ++k) {
      const kernel_group& group = result_.groups[k];
      for (int m : group.nodes) levels[k] = level_[m] > levels[k] ? level_[m] : levels[k];
      ends_in_columns[k] = group.folds_columns;
    }
    for (int c = 0; c < groups; ++c) {
      if (result_.groups[c].nodes.empty() || !ends_in_columns[c]) continue;
      const int fold = result_.groups[c].nodes.back();
      if (is_read[fold] || !folds_all_rows(g_, g_[fold])) continue;
      int into = none;
      for (int r = 0; r < groups; ++r) {
        if (ends_in_columns[r] || !can_take(r, levels[r], c)) continue;
        const bool computes = computes_operand(r, c);
        if (into == none || computes) into = r;
        if (computes) break;
      }
      if (into != none) merge(into, c);
    }
  }

  /// Whether group `r`, of this level, can compute the reduction of columns `c`: it reads or computes an
  /// operand of `c`, no other operand of `c` depends on it (they have lower levels), and its vectors keep
  /// their width, on which the bits of its sums depend. A group without reductions of rows must compute only
  /// elements, since several threads may share a row.
  constexpr bool can_take(int r, int level, int c) {
    const kernel_group &rows = result_.groups[r], &columns = result_.groups[c];
    if (rows.nodes.empty() || !(rows.space == columns.space)) return false;
    if ((has_wide_elements(columns) && !has_wide_elements(rows)) || !can_be_one(rows, columns)) return false;
    if (!rows.folds_rows)
      for (int m : rows.nodes)
        if (g_[m].op->kind != op::op_kind::reduce && !(g_[m].result.extents == rows.space)) return false;
    bool shares = false;
    for (int m : columns.nodes)
      for (int k = 0; k < g_[m].operands; ++k) {
        const int o = g_[m].operand[k];
        if (g_[o].op->kind == op::op_kind::constant || result_.group_of[o] == c) continue;
        if (result_.group_of[o] != r && level_[o] >= level) return false;
        shares = shares || result_.group_of[o] == r || reads(rows, o);
      }
    return shares;
  }
  /// Whether group `r` computes an operand of group `c`.
  constexpr bool computes_operand(int r, int c) const {
    for (int m : result_.groups[c].nodes)
      for (int k = 0; k < g_[m].operands; ++k)
        if (result_.group_of[g_[m].operand[k]] == r) return true;
    return false;
  }
  /// Whether a kernel computes with 64-bit elements.
  constexpr bool has_wide_elements(const kernel_group& group) const {
    const auto is_wide = [&](int id) {
      return g_[id].result.type == dtype::f64 || g_[id].result.type == dtype::i64;
    };
    for (int m : group.nodes) {
      if (is_wide(m)) return true;
      for (int k = 0; k < g_[m].operands; ++k)
        if (is_wide(g_[m].operand[k])) return true;
    }
    return false;
  }
  constexpr bool reads(const kernel_group& group, int id) const {
    const int base = base_of(g_, id);
    for (int m : group.nodes)
      for (int k = 0; k < g_[m].operands; ++k)
        if (base_of(g_, g_[m].operand[k]) == base) return true;
    return false;
  }

  constexpr bool can_be_one(const kernel_group& a, const kernel_group& b) {
    return a.nodes.size() + b.nodes.size() <= max_group && within_limits(a, b);
  }

  /// Whether one kernel can take the arguments of both groups and of one more node.
  constexpr bool within_limits(const kernel_group& a, const kernel_group& b) {
    constexpr int of_a_node = 4;  // three operands and a result
    if ((a.nodes.size() + b.nodes.size() + 1) * of_a_node <= max_numbers) return true;
    ++stamp_;
    for (const kernel_group* k : {&a, &b})
      for (int m : k->nodes) {
        mark_[m] = stamp_;
        inner_uses_[m] = 0;
      }
    int arguments = 0, numbers = 0;
    sequence<int> outside;
    for (const kernel_group* k : {&a, &b})
      for (int m : k->nodes)
        for (int i = 0; i < g_[m].operands; ++i) {
          const int o = g_[m].operand[i];
          if (mark_[o] == stamp_) ++inner_uses_[o];
          else if (!outside.contains(o)) outside.push_back(o);
        }
    for (int o : outside) ++(g_[o].op->kind == op::op_kind::constant ? numbers : arguments);
    for (const kernel_group* k : {&a, &b})
      for (int m : k->nodes) arguments += inner_uses_[m] < uses_[m];
    return arguments + of_a_node <= max_arguments && numbers + of_a_node <= max_numbers;
  }

  /// Whether all nodes of `k` can run over `space`, as elements or as row values.
  static constexpr bool fits(const kernel_group& k, const shape& space, bool of_rows) {
    return k.space == space || (of_rows && !k.folds_rows && k.space == row_shape(space));
  }

  constexpr void merge(int into, int from) {
    kernel_group &a = result_.groups[into], &b = result_.groups[from];
    if (a.space.last() == 1) a.space = b.space;
    a.folds_rows = a.folds_rows || b.folds_rows;
    a.folds_columns = a.folds_columns || b.folds_columns;
    sequence<int> both;
    int i = 0, j = 0;
    while (i < a.nodes.size() || j < b.nodes.size()) {
      const bool left = j == b.nodes.size() || (i < a.nodes.size() && a.nodes[i] < b.nodes[j]);
      both.push_back(left ? a.nodes[i++] : b.nodes[j++]);
    }
    for (int m : b.nodes) result_.group_of[m] = into;
    a.nodes = both;
    b.nodes = {};
  }

  /// The fusion without the groups that were merged into others.
  constexpr fusion compacted() const {
    fusion f;
    f.group_of = sequence<int>(g_.size(), -1);
    for (const kernel_group& k : result_.groups) {
      if (k.nodes.empty()) continue;
      for (int m : k.nodes) f.group_of[m] = f.groups.size();
      f.groups.push_back(k);
    }
    return f;
  }

  const compute_graph& g_;
  sequence<int> level_;                     // by node: the level of its unit
  sequence<int> uses_, inner_uses_, mark_;  // by node: readers; those within the groups considered
  int stamp_ = 0;
  fusion result_;
};

}  // namespace detail

/// Assigns the element-wise nodes and reductions of `g` to kernels.
constexpr fusion fuse(const compute_graph& g) { return detail::fuser(g).run(); }

}  // namespace weft::graph
