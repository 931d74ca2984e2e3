// SPDX-License-Identifier: MIT
// A plan: a graph as a list of steps over values, which the engine executes.
//
// The compiler computes the plan once per program and stores it in read-only tables; the same function
// computes one at run time for tests and tools. Sizes are symbols, which the engine resolves when it first
// sees the extents of the leaves.
//
// Plans identify ops by how the engine treats them and do not refer to the table of ops, so that a binary
// contains no code of graphs and derivatives.
#pragma once

#include <span>

#include <weft/graph/freeze.hpp>
#include <weft/graph/verify.hpp>
#include <weft/lower/encode.hpp>
#include <weft/lower/step_order.hpp>

namespace weft::lower {

/// Where the elements of a value are: in a leaf, in a number, in memory of the program, or in another value.
enum class storage : std::uint8_t { leaf, number, computed, view };

/// A value of the program: its memory, and the steps between which it is live.
struct value_entry {
  tensor_spec result{};
  storage where = storage::computed;
  int source = -1;  // for a leaf, its number; for a view, the value it refers to
  const char* op = "";
  view_kind view = view_kind::none;
  bool given = false;  // for a number: given at run time, otherwise an extent
  attributes at{};
  unsigned extents = 0;  // which attributes are extents, as bits
  int first_step = -1, last_step = -1;
  int output = -1;  // the program output it is written to
  bool adds = false;  // an output that nothing else reads, into which the step can accumulate
};

/// How the engine executes a step.
enum class step_kind : std::uint8_t { kernel, contraction, concat, pad, native, tap, exchange, arrival };

/// One step of a program: a fused kernel, a matrix product, a copy, a native op, a tap, messages to other
/// ranks, or the arrival of such messages.
struct step_entry {
  step_kind kind{};
  int kernel = -1;
  const char* op = "";
  const native_code* native = nullptr;
  native_function function = nullptr;  // of this CPU, if not part of `native`: lower/native_code.hpp
  attributes at{};
  unsigned extents = 0;                   // which attributes are extents, as bits
  shape space{};                          // for kernels: the space over which they run
  int first_operand = 0, inputs = 0, outputs = 0, arguments = 0;  // in plan::operands, in this order
  bool is_copy = false;    // a kernel that makes elements contiguous
  bool in_slices = false;  // a product whose result the next step exchanges, possibly slice by slice
};

/// One distinct kernel of a program.
struct kernel_entry {
  int first_instruction = 0, instructions = 0;
  kernel_division division{};
  bool uses_coordinate = false;
  int scratch_rows = 0, sweeps = 0, folds = 0, column_folds = 0;
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

/// The tables in the form in which the engine reads them, wherever they are stored.
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

/// The value of a plan, or of its view, that owns the memory of `id`.
template <class Plan>
constexpr int base_of(const Plan& p, int id) {
  while (p.values.begin()[id].where == storage::view) id = p.values.begin()[id].source;
  return id;
}

namespace detail {

class planner {
 public:
  constexpr explicit planner(const compute_graph& g)
      : g_(g),
        fused_(verified(graph::fuse(g), [&](const graph::fusion& f) { return graph::verify_fusion(g, f); })),
        layouts_(graph::layouts_of(g)),
        steps_(g_, fused_) {}

  constexpr plan run() {
    describe_values();
    find_outside_readers();
    for (int u : steps_.order()) {
      emit_arrivals(u);
      emit_step(u);
    }
    emit_arrivals(every_step);
    find_lifetimes();
    find_slices();
    find_sums();
    plan_.symbols = g_.dims.symbols;
    plan_.checks = g_.dims.checks;
    plan_.laws = g_.dims.laws;
    plan_.leaves = g_.leaves;
    for (int o : g_.outputs) plan_.outputs.push_back(o);
    return std::move(plan_);
  }

 private:
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
    if (steps_[u].group >= 0) {
      const graph::kernel_group& group = fused_.groups[steps_[u].group];
      const kernel_code code = make_code(g_, layouts_, group, read_outside_);
      s.kind = step_kind::kernel;
      s.kernel = kernel_number(code);
      s.space = group.space;
      for (int m : group.nodes)
        if (g_[m].op->kind == op::op_kind::reduce) s.at = g_[m].at;
      s.is_copy = group.nodes.size() == 1 && g_[group.nodes[0]].op == &info_of<op::contiguous>;
      s.inputs = append(code.inputs);
      s.outputs = append(code.outputs);
      s.arguments = append(code.arguments);
      if (s.inputs + s.outputs > max_arguments || s.arguments > max_numbers)
        throw error("weft: fusion: a kernel has more arguments than a call can take");
    } else {
      const int i = steps_[u].nodes.back();
      const node& n = g_[i];
      s.kind = n.op->kind == op::op_kind::contraction     ? step_kind::contraction
               : n.op == &info_of<op::concat>             ? step_kind::concat
               : n.op == &info_of<op::pad>                ? step_kind::pad
               : n.op == &info_of<op::tap>                ? step_kind::tap
               : n.op->native->messages != exchange::none ? step_kind::exchange
                                                          : step_kind::native;
      s.op = n.op->name;
      s.native = n.op->native;
      s.at = n.at;
      s.extents = n.op->extents;
      if (s.kind == step_kind::pad) set_pads(s, steps_[u]);
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
    if (steps_.starts_exchange(u)) under_way_.push_back(steps_[u].nodes.back());
  }

  /// Sets for each pad, the outer one first: dim, elements before, step.
  constexpr void set_pads(step_entry& s, const step_group& pads) const {
    s.at = {};
    for (int p = pads.nodes.size(); p-- > 0;) {
      const attributes& at = g_[pads.nodes[p]].at;
      for (index_t a : {at[0], at[1], at[3]}) s.at[s.at.count++] = a;
    }
    s.extents = 0b010010;
  }

  static constexpr int every_step = -1;

  /// Emits the arrivals of the pending exchanges whose results step u reads.
  constexpr void emit_arrivals(int u) {
    for (int n : std::exchange(under_way_, {}))
      if (u == every_step || steps_.reads(u, steps_.step_of(n))) {
        emit_arrival_of(n);
      } else {
        under_way_.push_back(n);
      }
  }

  /// An arrival accesses the memory that the messages of the exchange use.
  constexpr void emit_arrival_of(int exchange_node) {
    const node& n = g_[exchange_node];
    step_entry s{.kind = step_kind::arrival, .op = n.op->name, .first_operand = plan_.operands.size()};
    if (n.op->native->messages == exchange::apart) plan_.operands.push_back(n.operand[0]);
    plan_.operands.push_back(exchange_node);
    s.inputs = plan_.operands.size() - s.first_operand;
    plan_.steps.push_back(s);
  }

  /// Appends the operands of a step. The operands of concats or of a pad that the step also computes replace
  /// their results.
  constexpr int append_operands(int of) {
    const node& n = g_[of];
    int count = 0;
    for (int k = 0; k < n.operands; ++k) {
      const int id = n.operand[k];
      const bool parts = g_[id].op->kind == op::op_kind::copy && steps_.step_of(id) == steps_.step_of(of);
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
                             code.uses_coordinate, code.scratch_rows, code.sweeps, code.folds,
                             code.column_folds});
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

  /// Finds products whose result the next step exchanges and the step after that awaits, so that no other
  /// step overlaps the messages. In slices, the product of one slice overlaps the messages of the previous
  /// one, so the result of the exchange is live from the product on.
  constexpr void find_slices() {
    for (int t = 0; t + 2 < plan_.steps.size(); ++t) {
      step_entry& product = plan_.steps[t];
      const step_entry &sent = plan_.steps[t + 1], &arrival = plan_.steps[t + 2];
      if (product.kind != step_kind::contraction || sent.kind != step_kind::exchange ||
          sent.native->messages != exchange::in_place || arrival.kind != step_kind::arrival)
        continue;
      const int result = plan_.operands[sent.first_operand + sent.inputs];
      product.in_slices = plan_.operands[sent.first_operand] == plan_.operands[product.first_operand + 2] &&
                          plan_.operands[arrival.first_operand] == result;
      if (product.in_slices) plan_.values[result].first_step = t;
    }
  }

  /// Finds outputs into which steps can accumulate: nothing else reads them or shares their memory.
  constexpr void find_sums() {
    for (const step_entry& s : plan_.steps) {
      if (s.outputs == 0) continue;
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
  step_order steps_;
  sequence<int> under_way_;  // exchanges that have started but not arrived
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

/// Most plans fit these sizes and are computed once; a larger plan is computed again with its own sizes.
inline constexpr plan_sizes usual_sizes{256, 128, 512, 64, 2048, 128, 128, 128, 128};

/// The first elements of each list of a plan, up to the sizes S.
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
/// The plan returned by Source::make(). A variable, because clang recomputes a local constant of a function
/// whenever it evaluates a call.
template <class Source>
inline constexpr measured_plan measured_of = measured(Source::make());

}  // namespace detail

/// The plan returned by Source::make(), in tables of exact size.
template <class Source>
constexpr auto freeze() {
  constexpr const detail::measured_plan& p = detail::measured_of<Source>;
  if constexpr (p.sizes.fit_into(detail::usual_sizes)) return detail::frozen<p.sizes>(p.begin);
  else return detail::frozen<p.sizes>(Source::make());
}

}  // namespace weft::lower
