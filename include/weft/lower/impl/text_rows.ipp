// SPDX-License-Identifier: MIT
// Definitions of <weft/lower/text.hpp>: rows that a group computes, and what its items keep in registers.
#pragma once

#include <vector>

#include <weft/base/config.hpp>
#include <weft/lower/text.hpp>

namespace weft {
namespace lower {
namespace detail {

WEFT_DEFINE void text_writer::declare_registers(const std::string& name, const char* type) {
  line(type + (" " + name + "[") + std::to_string(form_.pieces * form_.width) + "];");
}

WEFT_DEFINE void text_writer::find_kept() {
  int loads[max_arguments]{};
  bool changes[max_arguments]{};
  for (std::size_t i = 0; i < instructions_.size(); i = after(i)) {
    const instruction w = at(i);
    if (w.op == load && loads[w.a]++ == 0) first_load_[w.a] = i;
    if (w.op == store || w.op == store_row) changes[w.a] = true;
  }
  const int elements = form_.pieces * form_.width;
  int kept = (form_.scratch_rows + form_.column_folds) * elements;
  for (int a = 0; a < form_.arguments; ++a)
    if (loads[a] > 1 && !changes[a] && kept + elements <= most_kept) kept += elements;
    else first_load_[a] = 0;
}

WEFT_DEFINE void text_writer::begin_row() {
  if (in_registers()) declare_row();
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < instructions_.size(); i = after(i))
    if (at(i).op == load_row) numbers.push_back(i);
  for (const std::size_t i : numbers) {
    const instruction w = at(i);
    define(i, loaded(w.type, element(w.type, w.a, "o", "0")));
  }
  load_ahead(0);
  for (const std::size_t i : numbers) line("AWAIT(r" + number(i) + ");");
}

WEFT_DEFINE bool text_writer::is_loaded_ahead(std::size_t i) const {
  if (!in_registers() || !reads_list(i)) return false;
  bool changed = false;
  for (std::size_t k = 0; k < i; k = after(k)) changed = changed || (at(k).op == store && at(k).a == at(i).a);
  return !changed;
}

WEFT_DEFINE void text_writer::load_ahead(std::size_t i) {
  while (i < instructions_.size() && at(i).op != sweep) i = after(i);
  std::vector<std::size_t> loads;
  for (; i < instructions_.size() && at(i).op != lower::end; i = after(i))
    if (is_loaded_ahead(i)) loads.push_back(i);
  if (loads.empty()) return;
  for (const std::size_t k : loads) write_list(k);
  begin_row_loop();
  for (const std::size_t k : loads) write_moves(k, false);
  end_row_loop();
  line("_Pragma(\"unroll\") for (int k = 0; k < " + std::to_string(form_.pieces) + "; ++k) {");
  for (const std::size_t k : loads)
    for (int m = 0; m < moves_of(k); ++m) line("AWAIT(" + own_move(k, m) + ");");
  line("}");
}

WEFT_DEFINE void text_writer::declare_row() {
  std::string declared = " ";
  for (int a = 0; a < form_.arguments; ++a)
    if (first_load_[a] > 0)
      declare_registers(argument_registers(at(first_load_[a])), register_name(at(first_load_[a]).type));
  for_each_instruction(instructions_, [&](const instruction& w) {
    if (w.op != spill) return;
    const std::string name = scratch_registers(w) + " ";
    if (declared.find(" " + name) != std::string::npos) return;
    declared += name;
    declare_registers(scratch_registers(w), register_name(w.type));
  });
}

WEFT_DEFINE void text_writer::write_block_of_rows() {
  const std::string rows = as_position("P.folded_rows"), blocks = as_position("P.blocks");
  line(std::string("for (") + position() + " block = GROUP_ID; block < " + blocks + "; block += GROUPS) {");
  if (in_registers())
    for_each_column_fold(
        [&](const instruction& w) { declare_registers(sum_registers(w), register_name(w.type)); });
  begin_row_loop();
  if (form_.width > 1) begin_element_loop();
  for_each_column_fold([&](const instruction& w) {
    line((in_registers() ? own_element(sum_registers(w)) : partial(w)) + " = " +
         neutral(w.op - column_sum, w.type) + ";");
  });
  if (form_.width > 1) line("}");
  end_row_loop();
  line(std::string(position()) + " end = " + rows + " * (block + 1) / " + blocks + ";");
  line(std::string("for (") + position() + " row = " + rows + " * block / " + blocks +
       "; row < end; ++row) {");
}

WEFT_DEFINE void text_writer::write_partial_results() {
  begin_row_loop();
  if (form_.width > 1) begin_element_loop();
  for_each_column_fold(
      [&](const instruction& w) { line(partial(w) + " = " + own_element(sum_registers(w)) + ";"); });
  if (form_.width > 1) line("}");
  end_row_loop();
}

WEFT_DEFINE void text_writer::begin_row_loop() {
  const std::string width = form_.width > 1 ? " * " + std::to_string(form_.width) : "";
  if (in_registers()) {
    line("_Pragma(\"unroll\") for (int k = 0; k < " + std::to_string(form_.pieces) + "; ++k) {");
    line(std::string(offset()) + " c = (k * GROUP_SIZE + LOCAL_ID)" + width + ";");
    return line(form_.whole ? "{" : "if (c < " + row_size() + ") {");
  }
  line(std::string("for (") + offset() + " c = LOCAL_ID" + width + "; c < " + row_size() +
       "; c += GROUP_SIZE" + width + ") {");
}

WEFT_DEFINE void text_writer::begin_sweep_loop(std::size_t begin) {
  if (!has_long_sums(begin)) return begin_row_loop();
  const auto width = std::to_string(form_.width), steps = std::to_string(run_of_rows / form_.width);
  for_each_long_sum(begin,
                    [&](std::size_t k) { line(register_name(at(k).type) + (" t" + number(k)) + " = 0;"); });
  line(std::string("for (") + offset() + " c = LOCAL_ID * " + width + ", after; c < " + row_size() + ";) {");
  line("after = c + " + steps + " * GROUP_SIZE * " + width + ";");
  line("if (after > " + row_size() + ") after = " + row_size() + ";");
  line("for (; c < after; c += GROUP_SIZE * " + width + ") {");
}

WEFT_DEFINE void text_writer::end_sweep_loop(std::size_t begin) {
  end_row_loop();
  if (!has_long_sums(begin)) return;
  for_each_long_sum(begin, [&](std::size_t k) {
    line("t" + number(k) + " = " + combined(0, "t" + number(k), "r" + number(k)) + ";");
    line("r" + number(k) + " = 0;");
  });
  line("}");
  for_each_long_sum(begin, [&](std::size_t k) { line("r" + number(k) + " = t" + number(k) + ";"); });
}

}  // namespace detail

}  // namespace lower
}  // namespace weft
