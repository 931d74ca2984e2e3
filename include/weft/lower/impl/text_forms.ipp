// SPDX-License-Identifier: MIT
// Further definitions of <weft/lower/text.hpp>: texts of several calls, forms of texts, and names of kernels.
#pragma once

#include <algorithm>

#include <weft/base/config.hpp>
#include <weft/lower/text.hpp>

namespace weft {
namespace lower {

WEFT_DEFINE std::string joint_text(std::span<const text_part> parts, index_t inside) {
  std::string out = R"(FUNCTION long group_of_launch() { return GROUP_ID; }
#undef GROUP_ID
#undef GROUPS
#define GROUP_ID group
#define GROUPS groups
#define P (*own)
)";
  std::string cases;
  // Once, because the memory of all functions of a kernel adds up, and a group computes only one part.
  if (std::any_of(parts.begin(), parts.end(), [](const text_part& p) { return uses_group_memory(p.form); }))
    out += detail::group_memory + std::string("\n");
  for (std::size_t k = 0; k < parts.size(); ++k) {
    const std::string number = std::to_string(k);
    out += detail::text_writer(parts[k].instructions, parts[k].form, static_cast<int>(k)).run();
    cases += "case " + number + ": part_" + number + "(";
    const int pointers = pointers_of(parts[k].form);
    for (int a = 0; a < pointers; ++a) cases += "(GLOBAL char*)record[" + std::to_string(a) + "], ";
    cases += "(GLOBAL const PARAMS_" + number + "*)(record + " + std::to_string(pointers) +
             "), group - table[call], table[call + 1] - table[call]); break;\n";
  }
  const std::string length = std::to_string(inside);
  out += "#undef P\n";
  out += inside > 0
             ? "typedef struct { long calls, table[" + length +
                   "]; } PARAMS;\nKERNEL weft_kernel(CONSTANT_PARAMS P) {\nconst long* table = P.table;\n"
             : "typedef struct { long at[1], calls; } PARAMS;\nKERNEL weft_kernel(GLOBAL char* p0, PARAMS P) "
               "{\nGLOBAL const long* table = (GLOBAL const long*)(p0 + P.at[0]);\n";
  return out + R"(long group = group_of_launch(), call = 0, after = P.calls;
while (after - call > 1) {
  long middle = (call + after) / 2;
  if (table[middle] <= group) call = middle;
  else after = middle;
}
GLOBAL const long* record = table + table[P.calls + 1 + 2 * call];
switch (table[P.calls + 2 + 2 * call]) {
)" + cases +
         "}\n}\n";
}

namespace detail {

WEFT_DEFINE bool fits_32_bits(const kernel_call& call) {
  constexpr index_t most = index_t{1} << 30;  // a loop that ends there steps slightly beyond
  const kernel_args& args = call.args;
  index_t items = 1;
  for (int d = 0; d < args.order; ++d) items *= args.extent[d];
  if (call.column_folds > 0) {
    const index_t blocks = column_blocks(call).blocks;
    items = std::max({items, args.folded_rows() * (blocks + 1), args.rows() * args.row_size() * blocks});
  }
  for (int a = 0; a < args.arguments; ++a) {
    index_t reach = 0;
    for (int d = 0; d < args.order; ++d)
      reach += std::abs(args.stride[a][d]) * std::max<index_t>(args.extent[d] - 1, 0);
    items = std::max(items, reach);
  }
  return items <= most;
}

WEFT_DEFINE void set_width(const kernel_call& call, const row_groups* groups, text_form& form) {
  const kernel_args& args = call.args;
  index_t bytes[max_arguments]{}, least = 16;  // bytes: of an element, where rows are accessed in order
  for_each_instruction(call.instructions, [&](const instruction& w) {
    if ((w.op == load && !w.b) || w.op == store) least = std::min(least, bytes[w.a] = size_of(w.type));
  });
  const auto divides = [&](index_t width) {
    bool all = args.row_size() % width == 0;
    for (int a = 0; a < args.arguments; ++a)
      for (int d = 0; d < args.order - 1 && bytes[a] > 0; ++d)
        all = all && (args.extent[d] <= 1 || args.stride[a][d] % width == 0);
    return all;
  };
  const index_t items = groups ? groups->items : 1;
  index_t width = 16 / std::max<index_t>(least, 2);
  while (width > 1 && !(divides(width) && args.row_size() >= width * items)) width /= 2;
  const bool in_registers = groups && groups->in_registers;
  const auto pieces = [&](index_t w) { return (args.row_size() + items * w - 1) / (items * w); };
  const bool keeps_sums = in_registers && call.column_folds > 0;
  while (keeps_sums && width > 1 && pieces(width / 2) * (width / 2) < pieces(width) * width) width /= 2;
  form.width = static_cast<int>(width);
  if (in_registers) {
    form.pieces = static_cast<int>(std::max<index_t>(pieces(width), 1));
    form.whole = args.row_size() == form.pieces * items * width;
  }
  for (int a = 0; a < args.arguments; ++a) {
    const auto moved = static_cast<std::uintptr_t>(std::min<index_t>(width * bytes[a], 16));
    const auto address = reinterpret_cast<std::uintptr_t>(args.pointer[a]);
    form.aligned = form.aligned && (bytes[a] == 0 || address % moved == 0);
  }
}

}  // namespace detail

WEFT_DEFINE text_form text_form_of(const kernel_call& call, int threads) {
  text_form form{call.division,     call.args.arguments, call.args.order, call.args.folded, 0,
                 call.scratch_rows, call.column_folds};
  for_each_instruction(call.instructions, [&](const instruction& w) {
    if (w.op == scalar_argument) form.numbers = std::max(form.numbers, w.a + 1);
  });
  form.narrow = detail::fits_32_bits(call);
  if (call.division == kernel_division::rows) {
    const row_groups groups(call, threads);
    form.items = groups.items;
    detail::set_width(call, &groups, form);
  } else {
    detail::set_width(call, nullptr, form);
  }
  const bool divides = call.division != kernel_division::elements || call.args.order > 1;
  if (call.fixed_row && divides) form.row_size = call.args.row_size();
  return form;
}

WEFT_DEFINE std::string kernel_name(std::span<const std::uint64_t> instructions) {
  const auto name_of = [](int op) -> std::string {
    if (op < first_opcode) return op::op_names<op::all::list>::at[op];
    if (op == fold_sum || op == column_sum) return "sum";
    return op >= fold_sum && op <= column_min ? "extremum" : "";
  };
  std::string names;
  for_each_instruction(instructions, [&](const instruction& w) {
    const std::string name = name_of(w.op);
    if (!name.empty() && (names + ",").find(" " + name + ",") == std::string::npos)
      names += (names.empty() ? " " : ", ") + name;
  });
  return names.empty() ? "copying kernel" : "fused kernel of" + names;
}

}  // namespace lower
}  // namespace weft
