// SPDX-License-Identifier: MIT
// Definitions of <weft/lower/text.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/lower/text.hpp>

namespace weft {
namespace lower {
namespace detail {

WEFT_DEFINE std::string loaded(dtype t, const std::string& element) {
  if (t == dtype::bf16) return "bf16_to_f32(" + element + ")";
  if (t == dtype::f16) return "f16_to_f32(" + element + ")";
  return element;
}

WEFT_DEFINE std::string stored(dtype t, const std::string& value) {
  if (t == dtype::bf16) return "f32_to_bf16(" + value + ")";
  if (t == dtype::f16) return "f32_to_f16(" + value + ")";
  return std::string("(") + memory_name(t) + ")" + value;
}

WEFT_DEFINE std::string text_writer::run() {
  if (in_registers()) find_kept();
  write_parameters();
  write_head();
  if (form_.joins_blocks) {
    write_joined_blocks();
    return std::move(out_);
  }
  for (std::size_t i = 0; i < instructions_.size(); ++i) i += write_instruction(i);
  write_tail();
  return std::move(out_);
}

WEFT_DEFINE std::string text_writer::as_position(const std::string& x) const {
  return form_.narrow ? "(uint)" + x : x;
}
WEFT_DEFINE std::string text_writer::as_offset(const std::string& x) const {
  return form_.narrow ? "(int)" + x : x;
}
WEFT_DEFINE std::string text_writer::row_size() const {
  return form_.row_size > 0 ? std::to_string(form_.row_size) : as_offset("P.size");
}

WEFT_DEFINE void text_writer::write_parameters() {
  const auto order = std::to_string(form_.order);
  line("typedef struct {");
  line("  long at[" + std::to_string(pointers()) + "], rows, size, folded_rows, blocks;");
  line("  long extent[" + order + "], stride[" + std::to_string(form_.arguments) + "][" + order + "];");
  if (form_.numbers > 0) line("  long number[" + std::to_string(form_.numbers) + "];");
  line(part_ < 0 ? "} PARAMS;" : "} PARAMS_" + std::to_string(part_) + ";");
}

WEFT_DEFINE void text_writer::write_head() {
  out_ += part_ < 0 ? "KERNEL weft_kernel(" : "FUNCTION void part_" + std::to_string(part_) + "(";
  for (int a = 0; a < pointers(); ++a) out_ += "GLOBAL char* p" + std::to_string(a) + ", ";
  line(part_ < 0 ? "PARAMS P) {"
                 : "GLOBAL const PARAMS_" + std::to_string(part_) + "* own, long group, long groups) {");
  if (part_ < 0 && uses_group_memory(form_)) line(group_memory);
  if (form_.joins_blocks) return;
  if (by_rows()) {
    if (form_.scratch_rows > 0 && !in_registers())
      line("GLOBAL char* scratch = p" + std::to_string(form_.arguments) + " + P.at[" +
           std::to_string(form_.arguments) + "] + (P.blocks * " + std::to_string(form_.column_folds) +
           " + GROUP_ID * " + std::to_string(form_.scratch_rows) + ") * P.size * 8;");
    if (form_.column_folds > 0) write_block_of_rows();
    else
      line(std::string("for (") + position() + " row = GROUP_ID; row < " + as_position("P.rows") +
           "; row += GROUPS) {");
  } else {
    const bool divided = by_columns();
    const bool one_row = kept() == 0 && !divided;
    const std::string width = std::to_string(form_.width);
    const std::string items =
        std::string("(P.rows * P.size") + (divided ? " * P.blocks / " : " / ") + width + ")";
    line(std::string(position()) + " items = " + as_position(items) + ";");
    line(std::string(position()) + " across = " + as_position("(" + row_size() + " / " + width + ")") + ";");
    line(std::string("for (") + position() + " e = GLOBAL_ID; e < items; e += GLOBAL_SIZE) {");
    if (!one_row) line(std::string(position()) + " row = e / across;");
    line(std::string(offset()) + " c = " + as_offset((one_row ? "(e * " : "(e % across * ") + width + ")") +
         ";");
    if (divided)
      line(std::string(position()) + " block = row % " + as_position("P.blocks") +
           "; row /= " + as_position("P.blocks") + ";");
  }
  for (int a = 0; a < form_.arguments; ++a) line(std::string(offset()) + " o" + std::to_string(a) + " = 0;");
  write_offsets("row", 0, by_rows() ? form_.order - 1 : kept());
  if (by_rows()) begin_row();
  if (by_columns()) {
    for_each_column_fold([&](const instruction& w) {
      std::string values;
      for (int j = 0; j < form_.width; ++j) values += (j ? ", " : "") + neutral(w.op - column_sum, w.type);
      line(register_name(w.type) + (" " + sum_registers(w)) + "[] = {" + values + "};");
    });
    for (int a = 0; a < form_.arguments; ++a)
      line(std::string(offset()) + " b" + std::to_string(a) + " = o" + std::to_string(a) + ";");
    const std::string rows = as_position("P.folded_rows"), blocks = as_position("P.blocks");
    line(std::string(position()) + " end = " + rows + " * (block + 1) / " + blocks + ";");
    line("_Pragma(\"unroll " + std::to_string(form_.width > 1 ? 4 : 8) + "\")");  // rows on their way
    line(std::string("for (") + position() + " f = " + rows + " * block / " + blocks + "; f < end; ++f) {");
    for (int a = 0; a < form_.arguments; ++a)
      line(std::string(offset()) + " o" + std::to_string(a) + " = b" + std::to_string(a) + ";");
    write_offsets("f", kept(), form_.order - 1);
  }
}

WEFT_DEFINE std::string text_writer::partial(const instruction& w, const std::string& index) const {
  const auto n = std::to_string(form_.arguments);
  const std::string before = w.c > 0 ? " + P.blocks * P.rows * P.size * 8 * " + std::to_string(w.c) : "";
  return std::string("((GLOBAL ") + register_name(w.type) + "*)(p" + n + " + P.at[" + n + "]" + before +
         "))[" + index + "]";
}

WEFT_DEFINE std::string text_writer::partial(const instruction& w) const {
  return partial(w, as_offset("block") + " * " + row_size() + " + " + column());
}

WEFT_DEFINE std::string text_writer::column_sum_of(const instruction& w) const {
  if (by_columns()) return sum_registers(w) + (form_.width > 1 ? "[j]" : "[0]");
  return in_registers() ? own_element(sum_registers(w)) : partial(w);
}

WEFT_DEFINE void text_writer::write_joined_blocks() {
  const std::string across = as_position(row_size()), items = as_position("(P.rows * P.size)");
  const std::string strips = std::to_string(row_groups::least_items / column_blocks::joined_columns);
  const std::string columns = std::to_string(column_blocks::joined_columns);
  line(std::string("for (") + position() + " first = GROUP_ID * " + columns + "; first < " + items +
       "; first += GROUPS * " + columns + ") {");
  line(std::string(position()) + " e = first + LOCAL_ID % " + columns + ", strip = LOCAL_ID / " + columns +
       ", row = e / " + across + ";");
  line(std::string(offset()) + " c = e % " + across + ";");
  for (int a = 0; a < form_.arguments; ++a) line(std::string(offset()) + " o" + std::to_string(a) + " = 0;");
  write_offsets("row", 0, kept());
  const auto index = [&](const std::string& block) {
    return "(row * " + as_position("P.blocks") + " + " + block + ") * " + across + " + c";
  };
  const auto sum_of = [](const instruction& w) { return "sum" + std::to_string(w.c); };
  const auto total_of = [](const instruction& w) { return "total" + std::to_string(w.c); };
  for_each_column_fold([&](const instruction& w) {
    const std::string none = neutral(w.op - column_sum, w.type);
    line(register_name(w.type) + (" " + sum_of(w)) + " = " + none + ", " + total_of(w) + " = " + none + ";");
  });
  const std::string blocks = as_position("P.blocks"), at_once = "8";  // results on their way
  line(std::string("for (") + position() + " block = e < " + items + " ? strip : " + blocks +
       ", after; block < " + blocks + ";) {");
  line("after = block + " + std::to_string(run_of_rows) + " * " + strips + ";");
  line("if (after > " + blocks + ") after = " + blocks + ";");
  line("for (; block + (" + at_once + " - 1) * " + strips + " < after; block += " + at_once + " * " + strips +
       ") {");
  const std::string each = "_Pragma(\"unroll\") for (int k = 0; k < " + at_once + "; ++k) ";
  const auto next_of = [](const instruction& w) { return "next" + std::to_string(w.c); };
  for_each_column_fold([&](const instruction& w) {
    line(register_name(w.type) + (" " + next_of(w)) + "[" + at_once + "];");
    line(each + next_of(w) + "[k] = " + partial(w, index("block + k * " + strips)) + ";");
  });
  for_each_column_fold([&](const instruction& w) {
    line(each + sum_of(w) + " = " + combined(w.op - column_sum, sum_of(w), next_of(w) + "[k]") + ";");
  });
  line("}");
  line("for (; block < after; block += " + strips + ") {");
  for_each_column_fold([&](const instruction& w) {
    line(sum_of(w) + " = " + combined(w.op - column_sum, sum_of(w), partial(w, index("block"))) + ";");
  });
  line("}");
  for_each_column_fold([&](const instruction& w) {
    line(total_of(w) + " = " + combined(w.op - column_sum, total_of(w), sum_of(w)) + ";");
    line(sum_of(w) + " = " + neutral(w.op - column_sum, w.type) + ";");
  });
  line("}");
  for_each_column_fold([&](const instruction& w) {
    const std::string type = register_name(w.type), sum = total_of(w);
    line("{ SHARED " + type + "* of_strips = (SHARED " + type + "*)shared;");
    line("of_strips[LOCAL_ID] = " + sum + ";");
    line("BARRIER;");
    line("if (e < " + items + " && strip == 0) {");
    line("for (int s = 1; s < " + strips + "; ++s)");
    line(sum + " = " + combined(w.op - column_sum, sum, "of_strips[LOCAL_ID + s * " + columns + "]") + ";");
    line(element(w.type, w.a, "o", "c") + " = " + stored(w.type, sum) + "; }");
    line("BARRIER; }");
  });
  line("} }");
}

WEFT_DEFINE void text_writer::write_offsets(const std::string& row, int first, int last) {
  if (first >= last) return;
  line(std::string("{ ") + position() + " rest = " + row + ", i;");
  for (int d = last; d-- > first;) {
    const auto dim = std::to_string(d);
    const std::string extent = as_position("P.extent[" + dim + "]");
    line(d == first ? "i = rest;" : "i = rest % " + extent + "; rest /= " + extent + ";");
    for (int a = 0; a < form_.arguments; ++a)
      line("o" + std::to_string(a) + " += " + as_offset("i") + " * " +
           as_offset("P.stride[" + std::to_string(a) + "][" + dim + "]") + ";");
  }
  line("}");
}

WEFT_DEFINE void text_writer::write_tail() {
  if (by_columns()) {
    line("}");
    const std::string at = form_.width > 1 ? "e * " + std::to_string(form_.width) + " + j" : "e";
    if (form_.width > 1) begin_element_loop();
    for_each_column_fold([&](const instruction& w) {
      line("if (P.blocks > 1) " + partial(w, at) + " = " + column_sum_of(w) + "; else");
      line(element(w.type, w.a, "b", column()) + " = " + stored(w.type, column_sum_of(w)) + ";");
    });
    if (form_.width > 1) line("}");
  }
  line("}");
  if (by_blocks_of_rows() && in_registers()) write_partial_results();
  line(by_blocks_of_rows() ? "} }" : "}");
}

WEFT_DEFINE std::string text_writer::element(dtype t, int a, const char* offset, const std::string& index) {
  const auto n = std::to_string(a);
  return std::string("((GLOBAL ") + memory_name(t) + "*)(p" + n + " + P.at[" + n + "]))[" + offset + n +
         " + " + index + "]";
}

WEFT_DEFINE std::string text_writer::scratch_row(dtype t, int row) const {
  return std::string("((GLOBAL ") + register_name(t) + "*)(scratch + P.size * 8 * " + std::to_string(row) +
         "))";
}

WEFT_DEFINE std::string text_writer::moved_type(int bytes) {
  return bytes == 1 ? "uchar" : bytes == 2 ? "ushort" : bytes == 4 ? "uint" : bytes == 8 ? "uint2" : "uint4";
}

WEFT_DEFINE void text_writer::write_list(std::size_t i) {
  const auto [type, size, where] = list_of(i);
  const int bytes = form_.width * size;
  const std::string pieces = is_loaded_ahead(i) ? "[" + std::to_string(form_.pieces) + "]" : "";
  line("union { " + type + " element[" + std::to_string(form_.width) + "]; " + moved_type(bytes) + " all[" +
       std::to_string((bytes + 15) / 16) + "]; } v" + number(i) + pieces + ";");
}

WEFT_DEFINE bool text_writer::moves_at_once(std::size_t i) const {
  return form_.aligned || in_scratch(at(i));
}
WEFT_DEFINE int text_writer::moves_of(std::size_t i) const {
  return moves_at_once(i) ? (form_.width * list_of(i).size + 15) / 16 : form_.width;
}
WEFT_DEFINE std::string text_writer::own_move(std::size_t i, int move) const {
  return "v" + number(i) + (is_loaded_ahead(i) ? "[k]" : "") + (moves_at_once(i) ? ".all[" : ".element[") +
         std::to_string(move) + "]";
}

WEFT_DEFINE void text_writer::write_moves(std::size_t i, bool to_memory) {
  const auto [type, size, where] = list_of(i);
  const std::string moved = moves_at_once(i) ? moved_type(form_.width * size) : type;
  for (int k = 0; k < moves_of(i); ++k) {
    const std::string own = own_move(i, k);
    const std::string there = "((GLOBAL " + moved + "*)&" + where + ")[" + std::to_string(k) + "]";
    line((to_memory ? there + " = " + own : own + " = " + there) + ";");
  }
}

WEFT_DEFINE text_writer::list text_writer::list_of(std::size_t i) const {
  const instruction w = at(i);
  if (in_scratch(w))
    return {register_name(w.type), static_cast<int>(size_of(register_type(w.type))),
            scratch_row(w.type, w.a) + "[c]"};
  return {memory_name(w.type), static_cast<int>(size_of(w.type)), element(w.type, w.a, "o", "c")};
}

WEFT_DEFINE std::string text_writer::moved(std::size_t i) const {
  if (in_scratch(at(i)) && in_registers()) return own_element(scratch_registers(at(i)));
  const std::string own = "v" + number(i);
  if (is_loaded_ahead(i)) return own + (form_.width > 1 ? "[k].element[j]" : "[k].element[0]");
  return form_.width > 1 ? own + ".element[j]" : list_of(i).where;
}

WEFT_DEFINE std::string text_writer::neutral(int fold, dtype t) {
  if (fold == 0) return "0";
  const bool max = fold == 1;
  switch (register_type(t)) {
    case dtype::f64:
      return max ? "DOUBLE_OF_BITS(0xfff0000000000000ul)" : "DOUBLE_OF_BITS(0x7ff0000000000000ul)";
    case dtype::f32: return max ? "FLOAT_OF_BITS(0xff800000u)" : "FLOAT_OF_BITS(0x7f800000u)";
    case dtype::i64: return max ? "(-0x7fffffffffffffffl - 1)" : "0x7fffffffffffffffl";
    default: return max ? "(-0x7fffffff - 1)" : "0x7fffffff";
  }
}

WEFT_DEFINE std::string text_writer::combined(int fold, const std::string& a, const std::string& b) {
  constexpr const char* names[] = {"SUM", "LARGER", "SMALLER"};
  return std::string(names[fold]) + "(" + a + ", " + b + ")";
}

WEFT_DEFINE std::string text_writer::bits(dtype t, std::uint64_t word) {
  const any_number x{static_cast<std::int64_t>(word)};
  switch (register_type(t)) {
    case dtype::f64: return "DOUBLE_OF_BITS(" + std::to_string(word) + "ul)";
    case dtype::f32:
      return "FLOAT_OF_BITS(" + std::to_string(std::bit_cast<std::uint32_t>(x.as<float>())) + "u)";
    default: return std::string("(") + register_name(t) + ")" + std::to_string(word) + "ul";
  }
}

WEFT_DEFINE std::size_t text_writer::write_instruction(std::size_t i) {
  const instruction w = at(i);
  const char* once = by_rows() ? "if (LOCAL_ID == 0) " : "if (c == 0) ";
  switch (w.op) {
    case load: {
      const std::string kept = is_kept(i) ? own_element(argument_registers(w)) : "";
      if (was_loaded(i)) return define(i, kept), 0;
      const std::string inner =
          as_offset("P.stride[" + std::to_string(w.a) + "][" + std::to_string(form_.order - 1) + "]");
      define(i, loaded(w.type, w.b ? element(w.type, w.a, "o", column() + " * " + inner) : moved(i)));
      if (is_kept(i)) line(kept + " = " + reg(static_cast<int>(i)) + ";");
      return 0;
    }
    case load_row:
      if (!by_rows()) define(i, loaded(w.type, element(w.type, w.a, "o", "0")));
      return 0;
    case store: line(moved(i) + " = " + stored(w.type, reg(w.b)) + ";"); return 0;
    case store_row:
      line(once + element(w.type, w.a, "o", "0") + " = " + stored(w.type, reg(w.b)) + ";");
      return 0;
    case spill: line(moved(i) + " = " + reg(w.b) + ";"); return 0;
    case reload: define(i, moved(i)); return 0;
    case coordinate: define(i, std::string("(") + register_name(w.type) + ")" + column()); return 0;
    case scalar_argument: define(i, run_time_number(w)); return 0;
    case constant: define(i, bits(w.type, instructions_[i + 1])); return 1;
    case fold_sum:
    case fold_max:
    case fold_min:
      line("r" + number(i) + " = " + combined(w.op - fold_sum, "r" + number(i), reg(w.a)) + ";");
      return 0;
    case column_sum:
    case column_max:
    case column_min: {
      const std::string sum = column_sum_of(w);
      line(sum + " = " + combined(w.op - column_sum, sum, reg(w.b)) + ";");
      return 0;
    }
    case sweep: begin_sweep(i); return 0;
    case lower::end: end_sweep(i); return 0;
    default: define(i, operation(w)); return 0;
  }
}

WEFT_DEFINE std::string text_writer::run_time_number(const instruction& w) const {
  const std::string n = "P.number[" + std::to_string(w.a) + "]";
  if (register_type(w.type) == dtype::f64) return "DOUBLE_OF_BITS(" + n + ")";
  if (register_type(w.type) == dtype::f32) return "FLOAT_OF_BITS(" + n + ")";
  return std::string("(") + register_name(w.type) + ")" + n;
}

WEFT_DEFINE void text_writer::begin_element_loop() {
  line("_Pragma(\"unroll\") for (int j = 0; j < " + std::to_string(form_.width) + "; ++j) {");
}

WEFT_DEFINE void text_writer::begin_sweep(std::size_t i) {
  if (by_rows()) {
    for (std::size_t k = i + 1; at(k).op != lower::end; ++k)
      if (is_row_fold(at(k))) define(k, neutral(at(k).op - fold_sum, at(k).type));
    begin_sweep_loop(i);
  } else line("{");
  if (form_.width == 1) return;
  for (std::size_t k = i + 1; at(k).op != lower::end; ++k) {
    const bool reads = reads_list(k) && !is_loaded_ahead(k);
    if (reads || writes_list(k)) write_list(k);
    if (reads) write_moves(k, false);
  }
  begin_element_loop();
}

WEFT_DEFINE void text_writer::end_sweep(std::size_t i) {
  std::size_t begin = i;
  while (at(begin).op != sweep) --begin;
  if (form_.width > 1) {
    line("}");
    for (std::size_t k = begin; k < i; ++k)
      if (writes_list(k)) write_moves(k, true);
  }
  if (!by_rows()) return line("}");
  end_sweep_loop(begin);
  load_ahead(i);
  constexpr const char* names[] = {"fold_sum_", "fold_max_", "fold_min_"};
  for (std::size_t k = begin; k < i; ++k) {
    const instruction w = at(k);
    if (!is_row_fold(w)) continue;
    const std::string type = register_name(w.type);
    const std::string to =
        "r" + number(k);  // in steps: g++ 12 warns of overlapping copies for literal + temporary
    line(to + " = " + names[w.op - fold_sum] + type + "(" + to + ", (SHARED " + type + "*)shared);");
  }
}

WEFT_DEFINE std::string text_writer::operation(const instruction& w) const {
  if (w.op == op::number_of_op<op::cast>)
    return cast(register_type(at(static_cast<std::size_t>(w.a)).type), w);
  const std::string text = instruction_texts<op::all::list>::at[w.op];
  const bool integer = !is_floating(w.type) && wraps(w.op);
  const std::string wide = integer ? w.type == dtype::i64 ? "(ulong)" : "(uint)" : "";  // overflow is defined
  const auto is_letter = [](char x) { return (x >= 'a' && x <= 'z') || (x >= '0' && x <= '9') || x == '_'; };
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t j = i;
    while (j < text.size() && is_letter(text[j])) ++j;
    if (j == i) result += text[i++];
    else {
      const std::string name = text.substr(i, j - i);
      const int operand[] = {w.a, w.b, w.c};
      result +=
          name.size() == 1 && name[0] >= 'a' && name[0] <= 'c' ? wide + reg(operand[name[0] - 'a']) : name;
      i = j;
    }
  }
  return integer ? std::string("(") + register_name(w.type) + ")(" + result + ")" : result;
}

WEFT_DEFINE std::string text_writer::cast(dtype from, const instruction& w) {
  const std::string x = reg(w.a);
  if (w.type == dtype::boolean) return "(" + x + " != 0)";
  if (is_narrow(w.type)) return loaded(w.type, stored(w.type, "(f32)" + x));
  if (is_floating(from) && !is_floating(w.type))
    return std::string(name_of(from)) + "_to_" + name_of(w.type) + "(" + x + ")";
  return w.type == dtype::u8 ? "(i32)(u8)" + x : std::string("(") + register_name(w.type) + ")" + x;
}

}  // namespace detail

}  // namespace lower
}  // namespace weft
