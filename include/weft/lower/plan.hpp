// SPDX-License-Identifier: MIT
// A plan: a graph as a list of steps over values, which the engine executes.
//
// Computed once per program in the compiler and stored in read-only tables; the same function computes one at
// run time for tests and tools. Sizes are symbols, which the engine resolves when it first sees the extents
// of the leaves.
//
// Plans identify ops by their treatment in the engine and do not refer to the table of ops, so that a binary
// contains no code of graphs and derivatives.
#pragma once

#include <span>

#include <weft/graph/freeze.hpp>
#include <weft/graph/verify.hpp>
#include <weft/lower/encode.hpp>

namespace weft::lower {

/// Where the elements of a value are: in a leaf, in a number, in memory of the program, or in another
/// value's.
enum class storage : std::uint8_t { leaf, number, computed, view };

/// A value of the program: its memory, and the steps between which it is live.
struct value_entry {
  tensor_spec result{};
  storage where = storage::computed;
  int source = -1;  // of a leaf its number; of a view the value it refers to
  const char* op = "";
  view_kind view = view_kind::none;
  bool given = false;  // a number: given at run time, else an extent
  attributes at{};
  unsigned extents = 0;  // which attributes are extents, as bits
  int first_step = -1, last_step = -1;
  int output = -1;  // the program output it is written to
  bool adds = false;  // an output without other readers, whose step can accumulate
};

/// How the engine executes a step.
enum class step_kind : std::uint8_t { kernel, contraction, concat, pad, native, tap, exchange };

/// One step of a program: a fused kernel, a product, a copy, a native op, a tap or messages to other ranks.
struct step_entry {
  step_kind kind{};
  int kernel = -1;
  const char* op = "";
  const native_code* native = nullptr;
  native_function function = nullptr;  // of this CPU, if that is not part of `native`: lower/native_code.hpp
  attributes at{};
  unsigned extents = 0;                   // which attributes are extents, as bits
  shape space{};                          // of kernels: the space over which they run
  int first_operand = 0, inputs = 0, outputs = 0, arguments = 0;  // in plan::operands, in this order
};

/// One distinct kernel of a program.
struct kernel_entry {
  int first_instruction = 0, instructions = 0;
  kernel_division division{};
  bool uses_coordinate = false;
  int scratch_rows = 0, sweeps = 0, folds = 0;
};

/// The tables of a program while they are built.
struct plan {
  sequence<value_entry> values;
  sequence<step_entry> steps;
  sequence<int> operands;
  sequence<kernel_entry> kernels;
  sequence<std::uint64_t> instructions;
  sequence<symbol> symbols;
  sequence<extent_check> checks;
  sequence<applied_law> laws;
  sequence<int> outputs;  // values; -1 where an output does not exist
  int leaves = 0;
};

/// The tables as the engine reads them, wherever they are stored.
struct plan_view {
  std::span<const value_entry> values;
  std::span<const step_entry> steps;
  std::span<const int> operands;
  std::span<const kernel_entry> kernels;
  std::span<const std::uint64_t> instructions;
  std::span<const symbol> symbols;
  std::span<const extent_check> checks;
  std::span<const applied_law> laws;
  std::span<const int> outputs;
  int leaves = 0;
};

namespace detail {

class planner {
 public:
  constexpr explicit planner(const compute_graph& g)
      : g_(g),
        fused_(verified(graph::fuse(g), [&](const graph::fusion& f) { return graph::verify_fusion(g, f); })),
        layouts_(graph::layouts_of(g)),
        step_of_(g.size(), -1) {}

  constexpr plan run() {
    find_units();
    order_units();
    describe_values();
    find_outside_readers();
    for (int u : order_) emit_step(u);
    find_lifetimes();
    find_sums();
    plan_.symbols = g_.dims.symbols;
    plan_.checks = g_.dims.checks;
    plan_.laws = g_.dims.laws;
    plan_.leaves = g_.leaves;
    for (int o : g_.outputs) plan_.outputs.push_back(o);
    return std::move(plan_);
  }

 private:
  /// The nodes of one step: a group of fused nodes, or a single node.
  struct step_group {
    int group = -1;
    sequence<int> nodes;
  };

  static constexpr bool has_step(const node& n) {
    return n.op->kind == op::op_kind::contraction || n.op->kind == op::op_kind::copy ||
           n.op->kind == op::op_kind::native;
  }

  constexpr void find_units() {
    for (int i = 0; i < fused_.groups.size(); ++i) {
      for (int m : fused_.groups[i].nodes) step_of_[m] = groups_.size();
      groups_.push_back({i, fused_.groups[i].nodes});
    }
    const sequence<int> step_of = steps_of_concats();
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

  /// By node: the node itself, or the concat whose step copies its parts.
  constexpr sequence<int> steps_of_concats() const {
    const sequence<int> uses = graph::detail::uses_in(g_);
    sequence<int> step_of;
    for (int i = 0; i < g_.size(); ++i) step_of.push_back(i);
    for (int i = g_.size(); i-- > 0;)
      for (int k = 0; k < g_[i].operands; ++k)
        if (const int o = g_[i].operand[k]; graph::detail::is_part_of_concat(g_, uses, g_[i], o))
          step_of[o] = step_of[i];
    return step_of;
  }

  /// Orders units by their first nodes, as far as dependences allow. One that folds columns, such as the
  /// gradient of a bias, is put off as long as that keeps no memory longer, that is, until no other unit is
  /// to come that reads a value of the arena which it reads. So several of them follow each other, which
  /// devices can launch together.
  constexpr void order_units() {
    const int count = groups_.size();
    sequence<int> waits(count, 0);
    sequence<sequence<int>> readers(count, {}), reads(count, {});  // by unit: units, and values of the arena
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
    sequence<int> to_come(g_.size(), 0);  // by value: units that read it and are neither placed nor put off
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

  constexpr bool folds_columns(int u) const {
    return groups_[u].group >= 0 && fused_.groups[groups_[u].group].folds_columns;
  }
  constexpr sequence<bool> bases_of_outputs() const {
    sequence<bool> is_output(g_.size(), false);
    for (int o : g_.outputs)
      if (o >= 0) is_output[graph::detail::base_of(g_, o)] = true;
    return is_output;
  }

  constexpr void describe_values() {
    for (int i = 0; i < g_.size(); ++i) {
      const node& n = g_[i];
      value_entry v;
      v.result = n.result;
      v.op = n.op->name;
      v.view = graph::view_kind_of(n);
      v.given = n.op == &info_of<op::argument>;
      v.at = n.at;
      v.extents = n.op->extents;
      if (n.op == &info_of<op::leaf>) {
        v.where = storage::leaf;
        v.source = static_cast<int>(n.at[0]);
      } else if (n.op->kind == op::op_kind::constant) {
        v.where = storage::number;
      } else if (n.op->kind == op::op_kind::view) {
        v.where = storage::view;
        v.source = n.operand[0];
      }
      plan_.values.push_back(v);
    }
    for (int o = 0; o < g_.outputs.size(); ++o)
      if (g_.outputs[o] >= 0) plan_.values[graph::detail::base_of(g_, g_.outputs[o])].output = o;
  }

  constexpr void find_outside_readers() {
    read_outside_ = sequence<bool>(g_.size(), false);
    for (int o : g_.outputs)
      if (o >= 0) read_outside_[o] = true;
    for (int i = 0; i < g_.size(); ++i)
      for (int k = 0; k < g_[i].operands; ++k) {
        const int o = g_[i].operand[k];
        if (fused_.group_of[o] >= 0 && fused_.group_of[o] != fused_.group_of[i])
          read_outside_[o] = true;
      }
  }

  constexpr void emit_step(int u) {
    step_entry s;
    s.first_operand = plan_.operands.size();
    if (groups_[u].group >= 0) {
      const graph::kernel_group& group = fused_.groups[groups_[u].group];
      const kernel_code code = make_code(g_, layouts_, group, read_outside_);
      s.kind = step_kind::kernel;
      s.kernel = kernel_number(code);
      s.space = group.space;
      for (int m : group.nodes)
        if (g_[m].op->kind == op::op_kind::reduce) s.at = g_[m].at;
      s.inputs = append(code.inputs);
      s.outputs = append(code.outputs);
      s.arguments = append(code.arguments);
      if (s.inputs + s.outputs > max_arguments || s.arguments > max_numbers)
        throw error("weft: fusion: a kernel has more arguments than a call can take");
    } else {
      const int i = groups_[u].nodes.back();
      const node& n = g_[i];
      s.kind = n.op->kind == op::op_kind::contraction ? step_kind::contraction
               : n.op == &info_of<op::concat>         ? step_kind::concat
               : n.op == &info_of<op::pad>            ? step_kind::pad
               : n.op == &info_of<op::tap>            ? step_kind::tap
               : n.op->native->exchanges              ? step_kind::exchange
                                                      : step_kind::native;
      s.op = n.op->name;
      s.native = n.op->native;
      s.at = n.at;
      s.extents = n.op->extents;
      s.inputs = append_operands(i);
      plan_.operands.push_back(i);
      s.outputs = 1;
      for (int r = i + 1; r < g_.size(); ++r)
        if (g_[r].op == &info_of<op::result> && g_[r].operand[0] == i) {
          plan_.operands.push_back(r);
          ++s.outputs;
        }
    }
    plan_.steps.push_back(s);
  }

  /// Appends the operands of a step; those of concats that it computes as well replace their results.
  constexpr int append_operands(int of) {
    const node& n = g_[of];
    int count = 0;
    for (int k = 0; k < n.operands; ++k) {
      const int id = n.operand[k];
      const bool parts = n.op == &info_of<op::concat> && g_[id].op == n.op && step_of_[id] == step_of_[of];
      if (parts) {
        count += append_operands(id);
      } else {
        plan_.operands.push_back(id);
        ++count;
      }
    }
    return count;
  }

  constexpr int append(const sequence<int>& ids) {
    for (int id : ids) plan_.operands.push_back(id);
    return ids.size();
  }

  constexpr int kernel_number(const kernel_code& code) {
    for (int k = 0; k < plan_.kernels.size(); ++k)
      if (same_code(plan_.kernels[k], code)) return k;
    plan_.kernels.push_back({plan_.instructions.size(), code.instructions.size(), code.division,
                             code.uses_coordinate, code.scratch_rows, code.sweeps, code.folds});
    for (std::uint64_t w : code.instructions) plan_.instructions.push_back(w);
    return plan_.kernels.size() - 1;
  }
  constexpr bool same_code(const kernel_entry& k, const kernel_code& code) const {
    if (k.instructions != code.instructions.size() || k.division != code.division) return false;
    for (int i = 0; i < k.instructions; ++i)
      if (plan_.instructions[k.first_instruction + i] != code.instructions[i]) return false;
    return true;
  }

  constexpr void find_lifetimes() {
    for (int t = 0; t < plan_.steps.size(); ++t) {
      const step_entry& s = plan_.steps[t];
      for (int k = 0; k < s.inputs + s.outputs; ++k) {
        const int id = plan_.operands[s.first_operand + k];
        value_entry& v = plan_.values[graph::detail::base_of(g_, id)];
        if (v.first_step < 0) v.first_step = t;
        v.last_step = t;
      }
    }
  }

  /// Finds outputs into which steps can accumulate: nothing else reads them or shares their memory.
  constexpr void find_sums() {
    for (const step_entry& s : plan_.steps) {
      value_entry& made = plan_.values[plan_.operands[s.first_operand + s.inputs]];
      const bool can = s.kind == step_kind::contraction || (s.kind == step_kind::native && s.native->adds);
      made.adds = can && made.output >= 0 && made.first_step == made.last_step && is_one_output(made.output);
    }
  }

  constexpr bool is_one_output(int output) const {
    int same = 0;
    for (int o : g_.outputs)
      same += o >= 0 && graph::detail::base_of(g_, o) == graph::detail::base_of(g_, g_.outputs[output]);
    return same == 1;
  }

  const compute_graph& g_;
  graph::fusion fused_;
  graph::view_layouts layouts_;
  sequence<int> step_of_;
  sequence<step_group> groups_;
  sequence<int> order_;
  sequence<bool> read_outside_;
  plan plan_;
};

struct plan_sizes {
  int values, steps, operands, kernels, instructions, symbols, checks, laws, outputs;

  constexpr bool fit_into(const plan_sizes& room) const {
    return values <= room.values && steps <= room.steps && operands <= room.operands &&
           kernels <= room.kernels && instructions <= room.instructions && symbols <= room.symbols &&
           checks <= room.checks && laws <= room.laws && outputs <= room.outputs;
  }
};

template <plan_sizes S>
struct frozen_plan {
  fixed_table<value_entry, S.values> values;
  fixed_table<step_entry, S.steps> steps;
  fixed_table<int, S.operands> operands;
  fixed_table<kernel_entry, S.kernels> kernels;
  fixed_table<std::uint64_t, S.instructions> instructions;
  fixed_table<symbol, S.symbols> symbols;
  fixed_table<extent_check, S.checks> checks;
  fixed_table<applied_law, S.laws> laws;
  fixed_table<int, S.outputs> outputs;
  int leaves = 0;

  constexpr plan_view view() const {
    return {values.view(), steps.view(), operands.view(), kernels.view(), instructions.view(),
            symbols.view(), checks.view(), laws.view(), outputs.view(), leaves};
  }
};

constexpr plan_sizes sizes_of(const plan& p) {
  return {p.values.size(), p.steps.size(), p.operands.size(), p.kernels.size(),
          p.instructions.size(), p.symbols.size(), p.checks.size(), p.laws.size(), p.outputs.size()};
}

}  // namespace detail

/// The plan of a graph in which all ops are expanded and all views are legal.
constexpr plan make_plan(const graph::compute_graph& g) { return detail::planner(g).run(); }

namespace detail {

/// Most plans are within these sizes and computed once; a larger one is computed again for its own sizes.
inline constexpr plan_sizes usual_sizes{256, 128, 512, 64, 2048, 128, 128, 128, 128};

/// The first elements of all lists of a plan, as many as tables of the sizes S hold.
template <plan_sizes S>
constexpr frozen_plan<S> frozen(const auto& p) {
  return {first_of<S.values>(p.values),
          first_of<S.steps>(p.steps),
          first_of<S.operands>(p.operands),
          first_of<S.kernels>(p.kernels),
          first_of<S.instructions>(p.instructions),
          first_of<S.symbols>(p.symbols),
          first_of<S.checks>(p.checks),
          first_of<S.laws>(p.laws),
          first_of<S.outputs>(p.outputs),
          p.leaves};
}

struct measured_plan {
  plan_sizes sizes;
  frozen_plan<usual_sizes> begin;
};
constexpr measured_plan measured(const plan& p) { return {sizes_of(p), frozen<usual_sizes>(p)}; }

}  // namespace detail

/// The plan returned by Source::make(), in tables of exact size.
template <class Source>
constexpr auto freeze() {
  constexpr detail::measured_plan p = detail::measured(Source::make());
  if constexpr (p.sizes.fit_into(detail::usual_sizes)) return detail::frozen<p.sizes>(p.begin);
  else return detail::frozen<p.sizes>(Source::make());
}

}  // namespace weft::lower
