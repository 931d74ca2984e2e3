// SPDX-License-Identifier: MIT
// Graphs as text and in the DOT language, to inspect the result of passes. run/draw.hpp draws expressions.
//
//   compute_graph g;
//   g.outputs.push_back(flatten<decltype(loss)>(g).id);
//   std::puts(to_text(g).c_str());
#pragma once

#include <string>

#include <weft/graph/build.hpp>
#include <weft/graph/fuse.hpp>

namespace weft::graph {

namespace detail {
inline std::string text_of_constant(const node& n) {
  const any_number x{n.at[0]};
  return is_floating(n.result.type) ? std::to_string(x.as<double>()) : std::to_string(x.bits);
}
inline std::string described(const compute_graph& g, int i) {
  const node& n = g[i];
  if (n.op == &info_of<op::constant>) return text_of_constant(n);
  return std::string(n.op->name) + " " + name_of(n.result.type) + " " + to_string(n.result.extents);
}
inline bool is_output(const compute_graph& g, int i) { return g.outputs.contains(i); }
}  // namespace detail

/// One line per node: "%3 = add(%1, %2)  f32 [32, 784]"; outputs are marked.
inline std::string to_text(const compute_graph& g) {
  std::string text;
  for (int i = 0; i < g.size(); ++i) {
    const node& n = g[i];
    text += "%" + std::to_string(i) + " = ";
    if (n.op == &info_of<op::constant>) {
      text += detail::text_of_constant(n);
    } else {
      text += std::string(n.op->name) + "(";
      for (int k = 0; k < n.operands; ++k) text += (k ? ", %" : "%") + std::to_string(n.operand[k]);
      text += std::string(")  ") + name_of(n.result.type) + " " + to_string(n.result.extents);
    }
    text += detail::is_output(g, i) ? "  -> output\n" : "\n";
  }
  return text;
}

namespace detail {
inline std::string dot_of_node(const compute_graph& g, int i) {
  return "n" + std::to_string(i) + " [label=\"" + described(g, i) + "\"" +
         (is_output(g, i) ? ", style=bold" : "") + "];\n";
}
}  // namespace detail

/// The graph in the language of Graphviz; outputs are drawn bold, nodes that `f` fuses into one kernel in a
/// box.
inline std::string to_dot(const compute_graph& g, const fusion& f = {}) {
  std::string text = "digraph {\n  node [shape=box, fontname=monospace];\n";
  for (int k = 0; k < f.groups.size(); ++k) {
    text +=
        "  subgraph cluster" + std::to_string(k) + " {\n    label=\"kernel " + std::to_string(k) + "\";\n";
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

}  // namespace weft::graph
