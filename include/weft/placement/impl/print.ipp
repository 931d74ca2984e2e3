// SPDX-License-Identifier: MIT
// Definitions of <weft/placement/print.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/placement/print.hpp>

namespace weft {
namespace graph {

WEFT_DEFINE std::string to_text(const sequence<message>& messages) {
  std::string text;
  for (const message& m : messages)
    text += std::string(m.op->name) + " " + name_of(m.whole.type) + " " + to_string(m.whole.extents) + "\n";
  return text;
}

WEFT_DEFINE std::string to_text(const placed_graph& p) {
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

WEFT_DEFINE std::string to_dot(const placed_graph& p) {
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

}  // namespace graph
}  // namespace weft
