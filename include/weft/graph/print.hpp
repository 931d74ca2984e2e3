// SPDX-License-Identifier: MIT
// Graphs as text and as DOT, for reading what passes did.
//
//   compute_graph g;
//   g.outputs.push_back(flatten<decltype(loss)>(g).id);
//   std::puts(to_text(g).c_str());
#pragma once

#include <string>

#include <weft/graph/build.hpp>

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

/// One line a node: "%3 = add(%1, %2)  f32 [32, 784]"; outputs are marked.
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

/// The graph in the language of Graphviz; outputs are drawn bold.
inline std::string to_dot(const compute_graph& g) {
  std::string text = "digraph {\n  node [shape=box, fontname=monospace];\n";
  for (int i = 0; i < g.size(); ++i) {
    text += "  n" + std::to_string(i) + " [label=\"" + detail::described(g, i) + "\"" +
            (detail::is_output(g, i) ? ", style=bold" : "") + "];\n";
    for (int k = 0; k < g[i].operands; ++k)
      text += "  n" + std::to_string(g[i].operand[k]) + " -> n" + std::to_string(i) + ";\n";
  }
  return text + "}\n";
}

}  // namespace weft::graph
