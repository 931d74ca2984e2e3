// SPDX-License-Identifier: MIT
// Programs on ranks that divide positions among themselves: attention is the only op that reads positions of
// other ranks, so all that changes is that op, in forward and in backward.
//
//   using graph = context_graph<Source>;      // Source::frozen with attention over the positions of all
//   ranks
#pragma once

#include <weft/graph/freeze.hpp>
#include <weft/graph/op_info.hpp>
#include <weft/graph/rewrite.hpp>
#include <weft/op/attention.hpp>

namespace weft::op {

/// Attention to the positions of all ranks, of which each has some. Executed by the hooks of the strategy
/// (run/execution_hooks.hpp); without, or on one rank, it is attention. Stands in graphs that are
/// differentiated already and has no derivative.
struct context_attention : attention {
  static constexpr auto name = "context_attention";
  static constexpr native_code code{.cpu = attention::code.cpu,
                                    .text = attention::code.text,
                                    .items = attention::code.items,
                                    .exchanges = true};
};
/// The derivative of attention over the positions of all ranks.
struct context_attention_backward : attention_backward {
  static constexpr auto name = "context_attention_backward";
  static constexpr native_code code{.cpu = attention_backward::code.cpu,
                                    .text = attention_backward::code.text,
                                    .items = attention_backward::code.items,
                                    .exchanges = true};
};

}  // namespace weft::op

namespace weft::graph {

/// `g` with attention over the positions of all ranks.
constexpr compute_graph with_context_attention(compute_graph g) {
  for (node& n : g.nodes) {
    if (n.op == &info_of<op::attention>) n.op = &info_of<op::context_attention>;
    if (n.op == &info_of<op::attention_backward>) n.op = &info_of<op::context_attention_backward>;
  }
  return g;
}

}  // namespace weft::graph

namespace weft {

/// The graph Source::frozen on ranks that divide positions.
template <class Source>
class context_graph {
  struct source {
    static consteval graph::compute_graph make() {
      return graph::with_context_attention(Source::frozen.thaw());
    }
  };

 public:
  static constexpr auto frozen = graph::freeze_graph<source>();
};

}  // namespace weft
