// SPDX-License-Identifier: MIT
// The messages between ranks of a divided graph, as a list and in bytes.
#pragma once

#include <weft/placement/place.hpp>

namespace weft::graph {

/// A collective of a divided graph.
struct message {
  op_pointer op{};      // op::all_reduce, op::all_gather or op::reduce_scatter
  int node = -1;        // of the divided graph
  tensor_spec whole{};  // the sum, or the value that is gathered or scattered; extents may be symbols
};

namespace detail {
constexpr message message_of(const compute_graph& g, int i) {
  const node& n = g[i];
  return {n.op, i, n.op == &info_of<op::reduce_scatter> ? g[n.operand[0]].result : n.result};
}
}  // namespace detail

/// The collectives of `g` that its outputs need, in the order in which they are executed.
constexpr sequence<message> messages_of(const compute_graph& g) {
  const sequence<bool> live = live_nodes(g);
  sequence<message> all;
  for (int i = 0; i < g.size(); ++i)
    if (live[i] && is_collective(g[i])) all.push_back(detail::message_of(g, i));
  return all;
}

/// The bytes that all `ranks` together send for a message of `elements` elements: an all_reduce sends each
/// element 2 (ranks - 1) times, gathers and scatters ranks - 1 times.
constexpr index_t bytes_sent(const message& m, index_t elements, index_t ranks) {
  const index_t times = m.op == &info_of<op::all_reduce> ? 2 : 1;
  return times * (ranks - 1) * elements * size_of(m.whole.type);
}

/// The same for all messages of `g`, whose extents must be static.
constexpr index_t bytes_sent(const compute_graph& g, index_t ranks) {
  index_t bytes = 0;
  for (const message& m : messages_of(g))
    bytes += bytes_sent(m, g.dims.canonical(m.whole.extents).size(), ranks);
  return bytes;
}

}  // namespace weft::graph
