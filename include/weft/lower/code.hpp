// SPDX-License-Identifier: MIT
// Canonical codes: a fused kernel as a short sequence of 64-bit instructions.
//
// A kernel runs over rows. Instructions between `sweep` and `end` are computed for every element of the row,
// a vector at a time; the others once per row. A reduction in a sweep has its value after the sweep. Layers
// that compute the same have equal instructions and share one kernel. Each backend uses them differently: as
// template arguments (cpu_kernel.hpp), translated to text (text.hpp), or interpreted (reference.hpp).
//
//   softmax of a row:  sweep  0: load a0  1: max 0  end   sweep  2: load a0  3: subtract 2 1 ...
#pragma once

#include <utility>

#include <weft/device/kernel.hpp>
#include <weft/graph/fuse.hpp>

namespace weft::lower {

/// Instructions other than ops; the opcodes of ops are their positions in op::all.
enum opcode : int {
  first_opcode = 128,
  load = first_opcode,  // a: buffer, b: 1 if the inner stride is not 1; type: in memory
  load_row,             // a: buffer; one element per row
  constant,             // the next instruction is its any_number
  scalar_argument,      // a: position among the scalars given at run time
  coordinate,           // position in the row
  store,                // a: buffer, b: register; type: in memory
  store_row,
  spill,                // a: scratch row, b: register
  reload,               // a: scratch row
  fold_sum,             // a: register; the value is ready after the sweep
  fold_max,
  fold_min,
  column_sum,           // a: buffer, b: register; folds rows into the buffer
  column_max,
  column_min,
  sweep,
  end
};

/// One instruction: opcode, type and three operands, encoded in 64 bits. Its register has its index.
struct instruction {
  int op = 0;
  dtype type = dtype::f32;
  int a = 0, b = 0, c = 0;

  constexpr std::uint64_t encoded() const {
    return static_cast<std::uint64_t>(op) | static_cast<std::uint64_t>(type) << 8 |
           static_cast<std::uint64_t>(a) << 16 | static_cast<std::uint64_t>(b) << 24 |
           static_cast<std::uint64_t>(c) << 32;
  }
  static constexpr instruction decoded(std::uint64_t w) {
    return {static_cast<int>(w & 255), static_cast<dtype>(w >> 8 & 255),
            static_cast<int>(w >> 16 & 255), static_cast<int>(w >> 24 & 255),
            static_cast<int>(w >> 32 & 255)};
  }
};

/// Whether `t` is a type to which stores convert from the type of computation.
constexpr bool is_storage(dtype t) { return is_narrow(t) || t == dtype::u8; }

/// Type of a register that holds a value of type `t`; bool is a mask.
constexpr dtype register_type(dtype t) { return is_storage(t) ? compute_type(t) : t; }

/// The code of one kernel, and the nodes it reads and writes.
struct kernel_code {
  sequence<std::uint64_t> instructions;
  kernel_division division = kernel_division::elements;
  bool uses_coordinate = false;
  sequence<int> inputs;     // nodes, in the order of arguments; outputs follow them
  sequence<int> outputs;
  sequence<int> arguments;  // nodes of run-time numbers
  int scratch_rows = 0, sweeps = 0, folds = 0;
};

namespace detail {

using graph::compute_graph;
using graph::info_of;
using graph::kernel_group;
using graph::node;

/// Whether to keep a value in a scratch row rather than recompute it.
constexpr bool is_expensive(const node& n) {
  return n.op == &info_of<op::exp> || n.op == &info_of<op::log> || n.op == &info_of<op::tanh> ||
         n.op == &info_of<op::erf> || n.op == &info_of<op::pow> || n.op == &info_of<op::log1p> ||
         n.op == &info_of<op::expm1> || n.op == &info_of<op::sin> || n.op == &info_of<op::cos> ||
         n.op == &info_of<op::divide>;
}

class encoder {
 public:
  constexpr encoder(const compute_graph& g, const graph::view_layouts& layouts, const kernel_group& group,
                  const sequence<bool>& read_outside)
      : g_(g), layouts_(layouts), group_(group), read_outside_(read_outside),
        level_(g.size(), 0), word_of_(g.size(), -1), sweep_of_word_(g.size(), -1),
        spilled_(g.size(), -1), stored_(g.size(), -1), member_(g.size(), false) {
    for (int m : group.nodes) member_[m] = true;
  }

  constexpr kernel_code run() {
    code_.division = group_.folds_columns  ? kernel_division::columns
                     : group_.folds_rows ? kernel_division::rows
                                         : kernel_division::elements;
    find_levels();
    collect_arguments();
    mark_spills();
    for (int p = 0; p < sweeps_; ++p) {
      emit_rows(p);
      emit_sweep(p);
    }
    emit_rows(sweeps_);
    code_.sweeps = sweeps_;
    return std::move(code_);
  }

 private:
  static constexpr bool folds(const node& n) { return n.op->kind == op::op_kind::reduce; }
  constexpr bool is_row(int id) const {  // one value per row
    return g_[id].result.extents.last() == 1 && group_.space.last() != 1;
  }
  constexpr bool is_number(int id) const {
    return g_[id].op->kind == op::op_kind::constant;
  }

  /// The level of a node is the number of sweeps that must end before it can be computed.
  constexpr void find_levels() {
    for (int m : group_.nodes) {
      int level = 0;
      for (int k = 0; k < g_[m].operands; ++k) {
        const int o = g_[m].operand[k];
        if (member_[o] && level_[o] > level) level = level_[o];
      }
      const bool column = folds(g_[m]) && group_.folds_columns;
      level_[m] = level + (folds(g_[m]) && !column);
      const int needs = folds(g_[m]) ? level + 1 : is_row(m) ? level : level + 1;
      if (needs > sweeps_) sweeps_ = needs;
    }
  }

  constexpr void collect_arguments() {
    for (int m : group_.nodes)
      for (int k = 0; k < g_[m].operands; ++k) {
        const int o = g_[m].operand[k];
        if (member_[o] || is_number(o) || g_[o].op == &info_of<op::coordinate>) continue;
        if (!code_.inputs.contains(o)) code_.inputs.push_back(o);
      }
    for (int m : group_.nodes)
      if (read_outside_[m]) {
        stored_[m] = code_.inputs.size() + code_.outputs.size();
        code_.outputs.push_back(m);
      }
  }

  /// The values for which sweep `p` exists: operands of reductions, and values stored or spilled in it.
  template <class F>
  constexpr void for_each_target(int p, F f) {
    for (int m : group_.nodes) {
      const node& n = g_[m];
      if (folds(n) && level_[m] == p + (group_.folds_columns ? 0 : 1)) f(n.operand[0]);
      const bool element = !folds(n) && !is_row(m);
      if (element && level_[m] == p && (stored_[m] >= 0 || spilled_[m] >= 0)) f(stored_from(m));
    }
  }

  /// The value to be stored as `m`: the operand of a cast that rounds as stores do, otherwise `m`.
  constexpr int stored_from(int m) const {
    const node& n = g_[m];
    if (n.op != &info_of<op::cast>) return m;
    const dtype from = g_[n.operand[0]].result.type;
    return is_storage(n.result.type) && from == compute_type(n.result.type) ? n.operand[0] : m;
  }

  /// Expensive values that a later sweep reads again are spilled to a scratch row.
  constexpr void mark_spills() {
    for (int p = sweeps_ - 1; p > 0; --p) {
      sequence<bool> seen(g_.size(), false);
      for_each_target(p, [&](int target) { mark_spills_below(target, p, seen); });
    }
  }
  constexpr void mark_spills_below(int id, int p, sequence<bool>& seen) {
    if (!member_[id] || is_row(id) || folds(g_[id]) || seen[id]) return;
    seen[id] = true;
    if (level_[id] < p && (stored_[id] >= 0 || spilled_[id] >= 0)) return;
    if (level_[id] < p && is_expensive(g_[id])) {
      spilled_[id] = code_.scratch_rows++;
      return;
    }
    for (int k = 0; k < g_[id].operands; ++k) mark_spills_below(g_[id].operand[k], p, seen);
  }

  constexpr int emit(instruction w) {
    code_.instructions.push_back(w.encoded());
    if (code_.instructions.size() > 255) throw error("weft: fusion: a kernel grew beyond 255 instructions");
    return code_.instructions.size() - 1;
  }

  /// Emits the row values of level `p` and their stores.
  constexpr void emit_rows(int p) {
    for (int m : group_.nodes) {
      if (!is_row(m) || level_[m] != p) continue;
      if (!folds(g_[m])) emit_instruction(m, -1);
      if (stored_[m] >= 0)
        emit({store_row, g_[m].result.type, stored_[m], word_of_[m]});
    }
  }

  constexpr void emit_sweep(int p) {
    sequence<bool> seen(g_.size(), false);
    for_each_target(p, [&](int target) { emit_row_operands(target, p, seen); });
    emit({sweep});
    for_each_target(p, [&](int target) { emit_value(target, p); });
    for (int m : group_.nodes) {
      const node& n = g_[m];
      if (folds(n) && level_[m] == p + (group_.folds_columns ? 0 : 1)) {
        const int operand = emit_value(n.operand[0], p);
        ++code_.folds;
        const int which = n.op == &info_of<op::reduce_sum> ? 0 : n.op == &info_of<op::reduce_max> ? 1 : 2;
        if (group_.folds_columns) emit({column_sum + which, n.result.type, stored_[m], operand});
        else word_of_[m] = emit({fold_sum + which, register_type(n.result.type), operand});
      } else if (!folds(n) && !is_row(m) && level_[m] == p) {
        if (stored_[m] >= 0) emit({store, n.result.type, stored_[m], emit_value(stored_from(m), p)});
        if (spilled_[m] >= 0) emit({spill, register_type(n.result.type), spilled_[m], word_of_[m]});
      }
    }
    emit({end});
  }

  /// Numbers and row values in memory that sweep `p` needs are loaded before it starts.
  constexpr void emit_row_operands(int id, int p, sequence<bool>& seen) {
    if (std::exchange(seen[id], true)) return;
    if (!member_[id]) {
      if (is_number(id) || is_row(id)) emit_value(id, -1);
      return;
    }
    if (is_row(id) || folds(g_[id])) return;
    if (level_[id] < p && (stored_[id] >= 0 || spilled_[id] >= 0)) return;
    for (int k = 0; k < g_[id].operands; ++k) emit_row_operands(g_[id].operand[k], p, seen);
  }

  /// The register of `id` in sweep `p`, or between sweeps if p is -1.
  constexpr int emit_value(int id, int p) {
    const bool row = is_number(id) || is_row(id) || (member_[id] && folds(g_[id]));
    if (word_of_[id] >= 0 && (row || sweep_of_word_[id] == p)) return word_of_[id];
    const dtype t = g_[id].result.type;
    int w = -1;
    if (is_number(id)) w = emit_number(id);
    else if (g_[id].op == &info_of<op::coordinate> && !member_[id]) {
      code_.uses_coordinate = true;
      w = emit({coordinate, t});
    } else if (!member_[id]) {
      const int a = input_of(id);
      w = row ? emit({load_row, t, a}) : emit({load, t, a, !layouts_.has_unit_inner_stride(id)});
    } else if (level_[id] < p && stored_[id] >= 0) {
      w = emit({load, t, stored_[id]});
    } else if (level_[id] < p && spilled_[id] >= 0) {
      w = emit({reload, register_type(t), spilled_[id]});
    } else {
      return emit_instruction(id, p);
    }
    word_of_[id] = w;
    sweep_of_word_[id] = p;
    return w;
  }

  constexpr int emit_instruction(int id, int p) {
    const node& n = g_[id];
    int registers[3]{};
    for (int k = 0; k < n.operands; ++k) registers[k] = emit_value(n.operand[k], p);
    word_of_[id] = emit({n.op->instruction, n.result.type, registers[0], registers[1], registers[2]});
    sweep_of_word_[id] = p;
    return word_of_[id];
  }

  constexpr int emit_number(int id) {
    const node& n = g_[id];
    const dtype t = register_type(n.result.type);
    if (n.op == &info_of<op::constant>) {
      const int w = emit({constant, t});
      code_.instructions.push_back(static_cast<std::uint64_t>(n.at[0]));
      return w;
    }
    code_.arguments.push_back(id);
    return emit({scalar_argument, t, code_.arguments.size() - 1});
  }

  constexpr int input_of(int id) const {
    for (int i = 0; i < code_.inputs.size(); ++i)
      if (code_.inputs[i] == id) return i;
    throw error("weft: fusion: a kernel reads a value it does not name");
  }

  const compute_graph& g_;
  const graph::view_layouts& layouts_;
  const kernel_group& group_;
  const sequence<bool>& read_outside_;
  sequence<int> level_, word_of_, sweep_of_word_, spilled_, stored_;
  sequence<bool> member_;
  int sweeps_ = 0;
  kernel_code code_;
};

}  // namespace detail

/// The code of one group. `read_outside` tells, by node, whether it is read outside its group.
constexpr kernel_code make_code(const graph::compute_graph& g, const graph::view_layouts& layouts,
                                const graph::kernel_group& group, const sequence<bool>& read_outside) {
  return detail::encoder(g, layouts, group, read_outside).run();
}

}  // namespace weft::lower
