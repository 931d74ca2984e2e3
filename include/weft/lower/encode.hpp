// SPDX-License-Identifier: MIT
// Writes the code of a kernel: sweep by sweep, with row values before and after each sweep.
#pragma once

#include <utility>

#include <weft/lower/kernel_analysis.hpp>

namespace weft::lower {

namespace detail {

class encoder {
 public:
  constexpr encoder(const compute_graph& g, const graph::view_layouts& layouts, const kernel_group& group,
                    const sequence<bool>& read_outside)
      : g_(g), layouts_(layouts), group_(group), kernel_(g, group, read_outside), registers_(g.size(), {}) {
    code_.division = group.folds_rows      ? kernel_division::rows
                     : group.folds_columns ? kernel_division::columns
                                           : kernel_division::elements;
  }

  constexpr kernel_code run() {
    for (int p = 0; p < kernel_.sweeps; ++p) {
      emit_rows(p);
      emit_sweep(p);
    }
    emit_rows(kernel_.sweeps);
    code_.inputs = std::move(kernel_.inputs);
    code_.outputs = std::move(kernel_.outputs);
    code_.sweeps = kernel_.sweeps;
    code_.scratch_rows = kernel_.scratch_rows;
    return std::move(code_);
  }

 private:
  static constexpr int between_sweeps = -1;

  /// The register that holds a value: for rows and numbers, once computed; for elements, within one sweep.
  struct value_register {
    int number = -1;
    int sweep = between_sweeps;
  };

  constexpr int emit(instruction i) {
    code_.instructions.push_back(i.encoded());
    if (code_.instructions.size() > 255) throw error("weft: fusion: a kernel grew beyond 255 instructions");
    return code_.instructions.size() - 1;
  }

  /// Computes the row values of level `p`, and stores them.
  constexpr void emit_rows(int p) {
    for (int m : group_.nodes) {
      const kernel_value& v = kernel_.values[m];
      if (!kernel_.is_of_row(m) || v.level != p) continue;
      if (!kernel_.is_fold(m)) emit_op(m, between_sweeps);
      if (v.buffer >= 0) emit({store_row, g_[m].result.type, v.buffer, registers_[m].number});
    }
  }

  constexpr void emit_sweep(int p) {
    kernel_.for_each_below_targets(p, [&](int id) {
      if (is_read_per_row(id)) emit_value(id, between_sweeps);
      return kernel_.computes(p, id);
    });
    emit({sweep});
    kernel_.for_each_target(p, [&](int target) { emit_value(target, p); });
    for (int m : group_.nodes) {
      if (kernel_.sweep_of(m) != p) continue;
      if (kernel_.is_fold(m)) emit_fold(m, p);
      else if (!kernel_.is_of_row(m)) emit_stores(m, p);
    }
    emit({end});
  }

  /// Numbers and row values in memory, which are loaded before the sweep that needs them.
  constexpr bool is_read_per_row(int id) const {
    return !kernel_.values[id].is_computed && (kernel_.is_number(id) || kernel_.is_of_row(id));
  }

  constexpr void emit_fold(int m, int p) {
    const node& n = g_[m];
    const int operand = emit_value(n.operand[0], p);
    const int which = n.op == &info_of<op::reduce_sum> ? 0 : n.op == &info_of<op::reduce_max> ? 1 : 2;
    if (kernel_.folds_row(m)) {
      ++code_.folds;
      registers_[m].number = emit({fold_sum + which, register_type(n.result.type), operand});
    } else {
      emit({column_sum + which, n.result.type, kernel_.values[m].buffer, operand, code_.column_folds++});
    }
  }

  constexpr void emit_stores(int m, int p) {
    const kernel_value& v = kernel_.values[m];
    const dtype t = g_[m].result.type;
    if (v.buffer >= 0) emit({store, t, v.buffer, emit_value(kernel_.stored_from(m), p)});
    if (v.scratch_row >= 0) emit({spill, register_type(t), v.scratch_row, registers_[m].number});
  }

  /// The register of `id` in sweep `p`; emits code that computes or loads the value if none has done so.
  constexpr int emit_value(int id, int p) {
    const kernel_value& v = kernel_.values[id];
    const bool of_row =
        kernel_.is_number(id) || kernel_.is_of_row(id) || (v.is_computed && kernel_.is_fold(id));
    const value_register& r = registers_[id];
    if (r.number >= 0 && (of_row || r.sweep == p)) return r.number;
    if (v.is_computed && !v.is_written_before(p)) return emit_op(id, p);
    registers_[id] = {v.is_computed ? emit_reload(id) : emit_operand(id, of_row), p};
    return registers_[id].number;
  }

  constexpr int emit_op(int id, int p) {
    const node& n = g_[id];
    int operands[3]{};
    for (int k = 0; k < n.operands; ++k) operands[k] = emit_value(n.operand[k], p);
    const int number = emit({n.op->instruction, n.result.type, operands[0], operands[1], operands[2]});
    registers_[id] = {number, p};
    return number;
  }

  /// Loads a value that an earlier sweep has stored.
  constexpr int emit_reload(int id) {
    const kernel_value& v = kernel_.values[id];
    const dtype t = g_[id].result.type;
    return v.buffer >= 0 ? emit({load, t, v.buffer}) : emit({reload, register_type(t), v.scratch_row});
  }

  /// Loads a value that the kernel does not compute.
  constexpr int emit_operand(int id, bool of_row) {
    if (kernel_.is_number(id)) return emit_number(id);
    const dtype t = g_[id].result.type;
    if (g_[id].op == &info_of<op::coordinate>) {
      code_.uses_coordinate = true;
      return emit({coordinate, t});
    }
    const int buffer = kernel_.values[id].buffer;
    if (buffer < 0) throw error("weft: fusion: a kernel reads a value it does not name");
    return of_row
               ? emit({load_row, t, buffer})
               : emit({load, t, buffer, kernel_.is_one_per_row(id) || !layouts_.has_unit_inner_stride(id)});
  }

  constexpr int emit_number(int id) {
    const node& n = g_[id];
    const dtype t = register_type(n.result.type);
    if (n.op == &info_of<op::constant>) {
      const int number = emit({constant, t});
      code_.instructions.push_back(static_cast<std::uint64_t>(n.at[0]));
      return number;
    }
    code_.arguments.push_back(id);
    return emit({scalar_argument, t, code_.arguments.size() - 1});
  }

  const compute_graph& g_;
  const graph::view_layouts& layouts_;
  const kernel_group& group_;
  kernel_analysis kernel_;
  sequence<value_register> registers_;  // by node
  kernel_code code_;
};

}  // namespace detail

/// The code of one group. `read_outside` says for each node whether it is read outside its group.
constexpr kernel_code make_code(const graph::compute_graph& g, const graph::view_layouts& layouts,
                                const graph::kernel_group& group, const sequence<bool>& read_outside) {
  return detail::encoder(g, layouts, group, read_outside).run();
}

}  // namespace weft::lower
