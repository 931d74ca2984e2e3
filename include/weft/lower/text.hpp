// SPDX-License-Identifier: MIT
// Translation of canonical codes to GPU kernels, in the dialects of gpu/dialect.hpp.
//
// A work item computes one element, or a few adjacent ones. If rows are reduced, a work group computes a row
// together. If columns are reduced, an item computes its columns of a block of rows or, if rows are reduced
// too, a work group computes a block of rows; a second text then adds the blocks in order. Extents and
// strides are parameters, so a text serves all shapes with one number of dims; but the size of a row is a
// constant if the program's extents fix it. Where they fit, positions and offsets have 32 bits, and elements
// that are adjacent in memory are read and written up to 16 bytes at a time.
//
//   kernel_text(call.instructions, text_form_of(call))
#pragma once

#include <bit>
#include <span>
#include <string>

#include <weft/lower/code.hpp>
#include <weft/op/all.hpp>

namespace weft::lower {

/// What the text of a kernel depends on apart from its instructions.
struct text_form {
  kernel_division division{};
  int arguments = 0;
  int order = 1;
  int folded = 0;
  int numbers = 0;  // run-time numbers
  int scratch_rows = 0, column_folds = 0;
  bool joins_blocks = false;  // the second text for folded columns
  bool narrow = false;        // positions and offsets have 32 bits
  int width = 1;              // adjacent elements of a row that an item computes
  bool aligned = true;        // whether they can be read and written in one access
  index_t row_size = 0;       // 0: a parameter
  int pieces = 0;             // of a row, `width` elements per item of a group; 0: any number
  bool whole = false;         // whether the last piece is as long as the others
  int items = row_groups::least_items;  // of a group
};

/// Number of pointers of a kernel; the last one may be scratch memory.
constexpr int pointers_of(const text_form& form) {
  return form.arguments + (form.scratch_rows > 0 || form.column_folds > 0);
}

/// Whether items of a group share memory.
constexpr bool uses_group_memory(const text_form& form) {
  return form.joins_blocks || form.division == kernel_division::rows;
}

/// One of the texts of a kernel that computes several calls.
struct text_part {
  std::span<const std::uint64_t> instructions;
  text_form form;
};

namespace detail {

template <class List>
struct instruction_texts;
template <class... Ops>
struct instruction_texts<op::op_list<Ops...>> {
  template <class Op>
  static constexpr const char* of() {
    if constexpr (requires { Op::text; }) return Op::text;
    else return "";
  }
  static constexpr const char* at[] = {of<Ops>()...};
};

/// Name of a register type in kernel texts; masks are 0 or 1.
constexpr const char* register_name(dtype t) {
  return register_type(t) == dtype::boolean ? "i32" : name_of(register_type(t));
}
constexpr const char* memory_name(dtype t) { return t == dtype::boolean ? "boolean" : name_of(t); }

/// Expression for the register value of a memory element of type `t`.
[[gnu::cold]] std::string loaded(dtype t, const std::string& element);
/// Expression for the memory element of type `t` of the register `value`.
[[gnu::cold]] std::string stored(dtype t, const std::string& value);

/// The memory that items of a group share.
inline constexpr const char* group_memory = "SHARED_MEMORY long shared[GROUP_SIZE];";

class text_writer {
 public:
  /// The kernel, or function number `part` of one that computes several calls.
  text_writer(std::span<const std::uint64_t> instructions, const text_form& form, int part = -1)
      : instructions_(instructions), form_(form), part_(part) {}

  [[gnu::cold]] std::string run();

 private:
  [[gnu::cold]] static std::string number(std::size_t i) { return std::to_string(i); }
  [[gnu::cold]] static std::string reg(int i) { return "r" + std::to_string(i); }
  instruction at(std::size_t i) const { return instruction::decoded(instructions_[i]); }
  /// The index of the instruction after number `i`, which a data word may follow.
  std::size_t after(std::size_t i) const { return i + (at(i).op == constant ? 2u : 1u); }
  bool by_rows() const { return form_.division == kernel_division::rows; }
  bool by_columns() const { return form_.division == kernel_division::columns; }
  /// Number of dims that count rows of the result.
  int kept() const { return form_.order - 1 - form_.folded; }
  int pointers() const { return pointers_of(form_); }

  [[gnu::cold]] void line(const std::string& text) { out_ += text + "\n"; }

  // Positions count from 0 and are divided; offsets may be negative.
  const char* position() const { return form_.narrow ? "uint" : "long"; }
  const char* offset() const { return form_.narrow ? "int" : "long"; }
  [[gnu::cold]] std::string as_position(const std::string& x) const;
  [[gnu::cold]] std::string as_offset(const std::string& x) const;
  [[gnu::cold]] std::string row_size() const;

  [[gnu::cold]] void write_parameters();

  [[gnu::cold]] void write_head();

  /// Whether a group computes blocks of rows, and folds their columns.
  bool by_blocks_of_rows() const { return by_rows() && form_.column_folds > 0; }
  /// Calls f(instruction) for each fold of columns.
  template <class F>
  void for_each_column_fold(F f) const {
    for_each_instruction(instructions_, [&](const instruction& w) {
      if (is_column_fold(w)) f(w);
    });
  }
  /// Partial result `index` of the fold `w`; a row of the result has P.blocks rows of partial results.
  [[gnu::cold]] std::string partial(const instruction& w, const std::string& index) const;
  /// The same for the element that is being computed, in blocks of rows.
  [[gnu::cold]] std::string partial(const instruction& w) const;
  /// The partial sum of the column of the element that is being computed.
  [[gnu::cold]] std::string column_sum_of(const instruction& w) const;
  [[gnu::cold]] void write_block_of_rows();
  [[gnu::cold]] void write_partial_results();
  [[gnu::cold]] void write_joined_blocks();

  static constexpr int most_kept = 64;  // registers of an item
  // If a row has a fixed number of pieces, an item keeps all of its elements in registers: of scratch rows,
  // of sums of columns, and of arguments that several sweeps read.
  bool in_registers() const { return form_.pieces > 0; }
  [[gnu::cold]] void declare_registers(const std::string& name, const char* type);
  [[gnu::cold]] void declare_row();
  /// Writes the beginning of a row: the loads of its numbers and of the elements of the first sweep are all
  /// issued before the first of them is awaited.
  [[gnu::cold]] void begin_row();
  /// Whether load number `i` is done for all pieces of a row before the sweep begins: it is unless this
  /// kernel has previously stored there.
  bool is_loaded_ahead(std::size_t i) const;
  /// Writes these loads of the first sweep after instruction `i`, before groups fold what the instruction
  /// before it computes.
  [[gnu::cold]] void load_ahead(std::size_t i);
  [[gnu::cold]] std::string own_element(const std::string& registers) const {
    return registers + "[" + (form_.width > 1 ? "k * " + std::to_string(form_.width) + " + j" : "k") + "]";
  }
  static std::string scratch_registers(const instruction& w) {
    return "s" + std::to_string(w.a) + "_" + register_name(w.type);
  }
  static std::string sum_registers(const instruction& w) { return "q" + std::to_string(w.c); }
  static std::string argument_registers(const instruction& w) { return "x" + std::to_string(w.a); }
  /// Finds the arguments whose elements an item keeps.
  [[gnu::cold]] void find_kept();
  bool is_kept(std::size_t i) const { return at(i).op == load && first_load_[at(i).a] > 0; }
  bool was_loaded(std::size_t i) const { return is_kept(i) && first_load_[at(i).a] != i; }

  /// Writes code that adds the offsets of row number `row`, over dims first to last - 1, to those of all
  /// arguments.
  [[gnu::cold]] void write_offsets(const std::string& row, int first, int last);

  [[gnu::cold]] void write_tail();

  /// Expression for element `index` of the row of argument `a`.
  [[gnu::cold]] static std::string element(dtype t, int a, const char* offset, const std::string& index);
  /// Expression for the memory of scratch row `row`.
  [[gnu::cold]] std::string scratch_row(dtype t, int row) const;

  // If an item computes several elements, a list in registers holds those that instruction i reads from or
  // writes to memory; it is moved in one access if it is aligned there.
  struct list {
    std::string type;   // of an element
    int size;           // its bytes
    std::string where;  // the first one in memory
  };
  [[gnu::cold]] list list_of(std::size_t i) const;
  [[gnu::cold]] static std::string moved_type(int bytes);
  [[gnu::cold]] void write_list(std::size_t i);
  [[gnu::cold]] void write_moves(std::size_t i, bool to_memory);
  bool moves_at_once(std::size_t i) const;
  [[gnu::cold]] int moves_of(std::size_t i) const;
  /// The part of the list that move number `move` transfers.
  [[gnu::cold]] std::string own_move(std::size_t i, int move) const;
  static bool in_scratch(const instruction& w) { return w.op == spill || w.op == reload; }
  bool reads_list(std::size_t i) const {
    const instruction w = at(i);
    return (w.op == load && !w.b && !was_loaded(i)) || (w.op == reload && !in_registers());
  }
  bool writes_list(std::size_t i) const {
    return at(i).op == store || (at(i).op == spill && !in_registers());
  }
  /// Expression for the element that such an instruction is computing.
  [[gnu::cold]] std::string moved(std::size_t i) const;
  std::string column() const { return form_.width > 1 ? "(c + j)" : "c"; }

  [[gnu::cold]] static std::string neutral(int fold, dtype t);
  [[gnu::cold]] static std::string combined(int fold, const std::string& a, const std::string& b);
  [[gnu::cold]] static std::string bits(dtype t, std::uint64_t word);

  [[gnu::cold]] void define(std::size_t i, const std::string& value) {
    line(std::string(register_name(at(i).type)) + " r" + number(i) + " = " + value + ";");
  }

  /// Writes instruction `i`; returns how many data words follow it.
  [[gnu::cold]] std::size_t write_instruction(std::size_t i);

  [[gnu::cold]] std::string run_time_number(const instruction& w) const;

  [[gnu::cold]] void begin_row_loop();
  [[gnu::cold]] void end_row_loop() { line(in_registers() ? "} }" : "}"); }
  // Long sums are sums of runs of run_of_rows elements, so that they stay accurate: r holds the sum of a run,
  // and t the sum of the runs before it.
  /// Calls f(i) for each sum over a row in the sweep that begins at instruction `begin`; for none if an item
  /// has only the few elements that are kept in registers.
  template <class F>
  void for_each_long_sum(std::size_t begin, F f) const {
    if (in_registers()) return;
    for (std::size_t k = begin + 1; at(k).op != lower::end; k = after(k))
      if (at(k).op == fold_sum && is_floating(at(k).type)) f(k);
  }
  bool has_long_sums(std::size_t begin) const {
    bool has = false;
    for_each_long_sum(begin, [&](std::size_t) { has = true; });
    return has;
  }
  /// The loop over the elements of a row in the sweep that begins at instruction `begin`.
  [[gnu::cold]] void begin_sweep_loop(std::size_t begin);
  [[gnu::cold]] void end_sweep_loop(std::size_t begin);
  [[gnu::cold]] void begin_element_loop();
  [[gnu::cold]] void begin_sweep(std::size_t i);
  [[gnu::cold]] void end_sweep(std::size_t i);

  /// The text of an op with its registers substituted for a, b and c.
  [[gnu::cold]] std::string operation(const instruction& w) const;
  static constexpr bool wraps(int op) {
    return op == op::number_of_op<op::add> || op == op::number_of_op<op::subtract> ||
           op == op::number_of_op<op::multiply> || op == op::number_of_op<op::negate>;
  }

  /// The register w.a, of type `from`, converted to w.type like `converted` in base/dtype.hpp.
  [[gnu::cold]] static std::string cast(dtype from, const instruction& w);

  std::span<const std::uint64_t> instructions_;
  text_form form_;
  int part_;
  std::size_t first_load_[max_arguments]{};  // of kept arguments; it is never instruction 0, a sweep
  std::string out_;
};

/// Whether 32 bits can hold every position in the space of a kernel and every offset of an element.
[[gnu::cold]] bool fits_32_bits(const kernel_call& call);
/// How many adjacent elements an item computes, up to 16 bytes of the smallest type; their number divides
/// rows and the steps between rows. Addresses only decide whether elements are moved in one access, so that
/// the order of sums does not depend on where operands are. Items that keep sums of columns in registers
/// compute fewer elements if that leaves fewer registers empty. `groups`: for a kernel over rows; otherwise
/// null.
[[gnu::cold]] void set_width(const kernel_call& call, const row_groups* groups, text_form& form);
}  // namespace detail

/// The text_form of a call; its number of scalars is determined from the instructions. `threads`: the maximum
/// number of items in a group of the device.
text_form text_form_of(const kernel_call& call, int threads = row_groups::most_items);

/// The source text of a kernel: a struct PARAMS and the function weft_kernel.
[[gnu::cold]] inline std::string kernel_text(std::span<const std::uint64_t> instructions,
                                             const text_form& form) {
  return detail::text_writer(instructions, form).run();
}

/// The source text of a kernel that computes several calls, each by one of `parts`, on devices whose kernels
/// can read addresses from memory. Its only parameter apart from PARAMS, which begins with the table's
/// offset, is a table; or, if `inside` is not 0, PARAMS contains a table of `inside` values. The table has:
/// the first group of each call and the number of groups; where the record of each call begins, and its part;
/// and the records, each the pointers and then the PARAMS of the part.
[[gnu::cold]] std::string joint_text(std::span<const text_part> parts, index_t inside);

/// The ops that a kernel computes, for messages: "fused kernel of exp, add, sum".
[[gnu::cold]] std::string kernel_name(std::span<const std::uint64_t> instructions);

}  // namespace weft::lower

#ifndef WEFT_COMPILED
#include <weft/lower/impl/text.ipp>
#include <weft/lower/impl/text_forms.ipp>
#include <weft/lower/impl/text_rows.ipp>
#endif
