// SPDX-License-Identifier: MIT
// Divided graphs as text and in the DOT language, with the placement of each value.
//
//   std::puts(to_text(place(joint, leaf_placements(joint))).c_str());
#pragma once

#include <weft/graph/print.hpp>
#include <weft/placement/messages.hpp>

namespace weft::graph {

/// One line per collective: "all_reduce f32 [2, 6, 24]".
std::string to_text(const sequence<message>& messages);

/// One line per node that an output needs, as for other graphs, with its placement; or the mistake.
std::string to_text(const placed_graph& p);

/// The graph in the language of Graphviz: values with their placements, collectives as filled ovals.
std::string to_dot(const placed_graph& p);

}  // namespace weft::graph

#ifndef WEFT_COMPILED
#include <weft/placement/impl/print.ipp>
#endif
