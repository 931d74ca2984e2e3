// SPDX-License-Identifier: MIT
// Divided graphs as text and in the DOT language, with the placement of each value.
//
//   std::puts(to_text(place(joint, leaf_placements(joint))).c_str());
#pragma once

#include <weft/graph/print.hpp>
#include <weft/placement/messages.hpp>

namespace weft::graph {

/// One line per collective: "all_reduce f32 [2, 6, 24]".
inline std::string to_text(const sequence<message>& messages) {
  std::string text;
  for (const message& m : messages)
    text += std::string(m.op->name) + " " + name_of(m.whole.type) + " " + to_string(m.whole.extents) + "\n";
  return text;
}

/// One line per node that an output needs, as of other graphs, with its placement; or the mistake.
inline std::string to_text(const placed_graph& p) {
  if (p.found) return to_text(p.found) + "\n";
  const sequence<bool> live = live_nodes(p.graph);
  const std::string all = to_text(p.graph);
  std::string text;
  std::size_t begin = 0;
  for (int i = 0; i < p.graph.size(); ++i) {
    const std::size_t end = all.find('\n', begin);
    if (live[i]) text += all.substr(begin, end - begin) + "  {" + to_string(p.where[i]) + "}\n";
    begin = end + 1;
  }
  return text;
}

/// The graph in the language of Graphviz: values with their placements, collectives as filled ovals.
inline std::string to_dot(const placed_graph& p) {
  const sequence<bool> live = live_nodes(p.graph);
  std::string text = "digraph {\n  node [shape=box, fontname=monospace];\n";
  for (int i = 0; i < p.graph.size(); ++i) {
    if (!live[i]) continue;
    text += "  n" + std::to_string(i) + " [label=\"" + detail::described(p.graph, i) + "\\n" +
            to_string(p.where[i]) + "\"" + (is_collective(p.graph[i]) ? ", shape=oval, style=filled" : "") +
            (detail::is_output(p.graph, i) ? ", style=bold" : "") + "];\n";
    for (int k = 0; k < p.graph[i].operands; ++k)
      text += "  n" + std::to_string(p.graph[i].operand[k]) + " -> n" + std::to_string(i) + ";\n";
  }
  return text + "}\n";
}

}  // namespace weft::graph
