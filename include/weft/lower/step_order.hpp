// SPDX-License-Identifier: MIT
// The steps of a program: which nodes of a graph each of them computes, and in which order they run.
//
//   const step_order steps(g, fusion);
//   for (int u : steps.order()) emit(steps[u].nodes);
#pragma once

#include <weft/graph/fuse.hpp>

namespace weft::lower {

using graph::compute_graph;
using graph::info_of;
using graph::node;

/// The nodes of one step: a group of fused nodes, or a single node with the concats or the pad that the step
/// also computes.
struct step_group {
  int group = -1;
  sequence<int> nodes;
};

/// The steps of a graph whose nodes are fused.
class step_order {
 public:
  constexpr step_order(const compute_graph& g, const graph::fusion& fused)
      : g_(g), fused_(fused), step_of_(g.size(), -1) {
    find_steps();
    order_steps();
    overlap_exchanges();
  }

  constexpr const step_group& operator[](int u) const { return groups_[u]; }
  /// The steps, in the order of execution.
  constexpr const sequence<int>& order() const { return order_; }
  /// The step that computes node i; -1 if none does.
  constexpr int step_of(int i) const { return step_of_[i]; }

  /// Whether step u reads a result of step `from`.
  constexpr bool reads(int u, int from) const {
    for (int m : groups_[u].nodes)
      for (int k = 0; k < g_[m].operands; ++k)
        if (step_of_[graph::detail::base_of(g_, g_[m].operand[k])] == from) return true;
    return false;
  }
  /// Whether step u starts messages during which other steps can run.
  constexpr bool starts_exchange(int u) const {
    const graph::op_info& op = *g_[groups_[u].nodes.back()].op;
    return op.kind == op::op_kind::native && is_started(op.native->messages);
  }

 private:
  static constexpr bool has_step(const node& n) {
    return n.op->kind == op::op_kind::contraction || n.op->kind == op::op_kind::copy ||
           n.op->kind == op::op_kind::native;
  }

  constexpr void find_steps() {
    for (int i = 0; i < fused_.groups.size(); ++i) {
      for (int m : fused_.groups[i].nodes) step_of_[m] = groups_.size();
      groups_.push_back({i, fused_.groups[i].nodes});
    }
    const sequence<int> step_of = steps_of_readers();
    for (int i = 0; i < g_.size(); ++i)
      if (has_step(g_[i])) {
        int& of_step = step_of_[step_of[i]];
        if (of_step < 0) {
          of_step = groups_.size();
          groups_.push_back({});
        }
        step_of_[i] = of_step;
        groups_[of_step].nodes.push_back(i);
      } else if (g_[i].op->kind == op::op_kind::result) {
        step_of_[i] = step_of_[g_[i].operand[0]];
      }
  }

  /// For each node, the node whose step computes it: for a concat, the concat that reads it, whose step
  /// copies its parts; for a pad, the pad that reads it; otherwise the node itself.
  constexpr sequence<int> steps_of_readers() const {
    const sequence<int> uses = graph::uses_of(g_);
    sequence<int> step_of;
    for (int i = 0; i < g_.size(); ++i) step_of.push_back(i);
    for (int i = g_.size(); i-- > 0;)
      for (int k = 0; k < g_[i].operands; ++k)
        if (const int o = g_[i].operand[k]; graph::detail::is_part_of_concat(g_, uses, g_[i], o))
          step_of[o] = step_of[i];
        else if (is_inner_pad(uses, g_[i], o) && step_of[i] == i) step_of[o] = i;
    return step_of;
  }
  constexpr bool is_inner_pad(const sequence<int>& uses, const node& n, int id) const {
    return n.op == &info_of<op::pad> && g_[id].op == n.op && uses[id] == 1;
  }

  /// Orders steps by their first nodes, as far as dependences allow. A step that folds columns, such as the
  /// gradient of a bias, is postponed as long as that does not extend any lifetime, that is, while other
  /// steps that read the same values of the arena are still to come. So several such steps follow each other,
  /// and devices can launch them together.
  constexpr void order_steps() {
    const int count = groups_.size();
    sequence<int> waits(count, 0);
    sequence<sequence<int>> readers(count, {}), reads(count, {});  // by step: steps, and values of the arena
    const sequence<bool> is_output = bases_of_outputs();
    for (int u = 0; u < count; ++u)
      for (int m : groups_[u].nodes)
        for (int k = 0; k < g_[m].operands; ++k) {
          const int base = graph::detail::base_of(g_, g_[m].operand[k]), from = step_of_[base];
          if (from < 0 || from == u) continue;
          readers[from].push_back(u);
          ++waits[u];
          if (!is_output[base] && !reads[u].contains(base)) reads[u].push_back(base);
        }
    sequence<int> to_come(g_.size(), 0);  // by value: its readers neither placed nor postponed
    for (int u = 0; u < count; ++u)
      for (int v : reads[u]) ++to_come[v];
    sequence<int> put_off;
    const auto place_those_put_off = [&] {
      for (int u : put_off) order_.push_back(u);
      put_off = {};
    };
    const auto ends_a_lifetime = [&] {
      for (int u : put_off)
        for (int v : reads[u])
          if (to_come[v] == 0) return true;
      return false;
    };
    sequence<int> by_first(g_.size(), -1);
    for (int u = 0; u < count; ++u) by_first[groups_[u].nodes[0]] = u;
    int begin = 0;
    while (order_.size() + put_off.size() < count) {
      int i = begin;
      while (by_first[i] < 0 || waits[by_first[i]] > 0) ++i;
      const int u = by_first[i];
      by_first[i] = -1;
      while (begin < g_.size() && by_first[begin] < 0) ++begin;
      (folds_columns(u) && readers[u].empty() ? put_off : order_).push_back(u);
      for (int r : readers[u]) --waits[r];
      for (int v : reads[u]) --to_come[v];
      if (ends_a_lifetime()) place_those_put_off();
    }
    place_those_put_off();
  }

  /// Puts products between the start of an exchange and the first step that reads its result. The exchange is
  /// started before a product that comes directly before it and that it does not read. If nothing is in
  /// between, the last product before it whose result no step reads is computed after the start. So memory is
  /// kept for at most the time of one product longer.
  constexpr void overlap_exchanges() {
    for (int p = 0; p < order_.size(); ++p) {
      if (!starts_exchange(order_[p])) continue;
      int to = p;
      while (to > 0 && !is_product(order_[to]) && !reads(order_[p], order_[to - 1])) --to;
      if (to < p && is_product(order_[to])) move_step(p, to);
    }
    for (int p = 0; p < order_.size(); ++p) {
      if (!starts_exchange(order_[p]) || product_follows(p)) continue;
      int from = p - 1;
      while (from >= 0 && !is_last_product(order_[from]) && !ends_overlap(order_[from])) --from;
      if (from >= 0 && is_last_product(order_[from])) move_step(from, p);
    }
  }
  /// Whether there is a product between the exchange at place p and the first step that reads its result.
  constexpr bool product_follows(int p) const {
    for (int next = p + 1; next < order_.size() && !reads(order_[next], order_[p]); ++next)
      if (is_product(order_[next])) return true;
    return false;
  }
  /// Whether products before step u may be there to overlap another exchange.
  constexpr bool ends_overlap(int u) const {
    if (starts_exchange(u)) return true;
    for (int other : order_)
      if (starts_exchange(other) && reads(u, other)) return true;
    return false;
  }
  constexpr void move_step(int from, int to) {
    const int u = order_[from], step = from < to ? 1 : -1;
    for (; from != to; from += step) order_[from] = order_[from + step];
    order_[to] = u;
  }
  constexpr bool is_product(int u) const {
    const node& n = g_[groups_[u].nodes.back()];
    return n.op->kind == op::op_kind::contraction ||
           (n.op->kind == op::op_kind::native && n.op->native->messages == exchange::none);
  }
  /// Whether step u is a product whose result no other step reads.
  constexpr bool is_last_product(int u) const {
    if (!is_product(u)) return false;
    for (int v = 0; v < groups_.size(); ++v)
      if (v != u && reads(v, u)) return false;
    return true;
  }
  constexpr bool folds_columns(int u) const {
    return groups_[u].group >= 0 && fused_.groups[groups_[u].group].folds_columns;
  }
  constexpr sequence<bool> bases_of_outputs() const {
    sequence<bool> is_output(g_.size(), false);
    for (int o : g_.outputs)
      if (o >= 0) is_output[graph::detail::base_of(g_, o)] = true;
    return is_output;
  }

  const compute_graph& g_;
  const graph::fusion& fused_;
  sequence<int> step_of_;
  sequence<step_group> groups_;
  sequence<int> order_;
};

}  // namespace weft::lower
