// SPDX-License-Identifier: MIT
// Definitions of <weft/graph/print.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/graph/print.hpp>

namespace weft {
namespace graph {
namespace detail {

WEFT_DEFINE std::string text_of_constant(const node& n) {
  const any_number x{n.at[0]};
  if (is_floating(n.result.type)) return weft::detail::joined({x.as<double>()});
  return std::to_string(x.bits);
}

WEFT_DEFINE std::string described(const compute_graph& g, int i) {
  const node& n = g[i];
  if (n.op == &info_of<op::constant>) return text_of_constant(n);
  return std::string(n.op->name) + " " + name_of(n.result.type) + " " + to_string(n.result.extents);
}

}  // namespace detail

WEFT_DEFINE std::string to_text(const compute_graph& g) {
  std::string text;
  for (int i = 0; i < g.size(); ++i) {
    const node& n = g[i];
    text += weft::detail::joined({"%", i, " = "});
    if (n.op == &info_of<op::constant>) {
      text += detail::text_of_constant(n);
    } else {
      text += std::string(n.op->name) + "(";
      for (int k = 0; k < n.operands; ++k) text += weft::detail::joined({k ? ", %" : "%", n.operand[k]});
      text += std::string(")  ") + name_of(n.result.type) + " " + to_string(n.result.extents);
    }
    text += detail::is_output(g, i) ? "  -> output\n" : "\n";
  }
  return text;
}

namespace detail {

WEFT_DEFINE std::string dot_of_node(const compute_graph& g, int i) {
  return weft::detail::joined(
      {"n", i, " [label=\"", described(g, i), is_output(g, i) ? "\", style=bold];\n" : "\"];\n"});
}

}  // namespace detail

WEFT_DEFINE std::string to_dot(const compute_graph& g, const fusion& f) {
  std::string text = "digraph {\n  node [shape=box, fontname=monospace];\n";
  for (int k = 0; k < f.groups.size(); ++k) {
    text += weft::detail::joined({"  subgraph cluster", k, " {\n    label=\"kernel ", k, "\";\n"});
    for (const int i : f.groups[k].nodes) text += "    " + detail::dot_of_node(g, i);
    text += "  }\n";
  }
  for (int i = 0; i < g.size(); ++i) {
    if (f.groups.empty() || f.group_of[i] < 0) text += "  " + detail::dot_of_node(g, i);
    for (int k = 0; k < g[i].operands; ++k)
      text += "  n" + std::to_string(g[i].operand[k]) + " -> n" + std::to_string(i) + ";\n";
  }
  return text + "}\n";
}

}  // namespace graph
}  // namespace weft
