// SPDX-License-Identifier: MIT
// The divided graph of a program as a constant, or the compile-time error that says why its layers cannot be
// divided.
#pragma once

#include <weft/graph/freeze.hpp>
#include <weft/graph/verify.hpp>
#include <weft/placement/messages.hpp>

namespace weft {

// Placements as types, which compilers print in their error messages.

/// Every rank has the whole value.
struct whole_on_every_rank {};
/// Every rank has a summand.
struct sum_over_ranks {};
/// The value is the largest over the ranks.
struct maximum_over_ranks {};
/// Every rank has a part of dim `Dim`; groups and units known only at run time are 0.
template <int Dim, index_t Groups, index_t Unit>
struct divided_dim {};
/// The same, in units that several ranks may share.
template <int Dim, index_t Groups, index_t Unit>
struct shared_dim_of {};
/// The name of an op.
template <char... Name>
struct op_named {};

/// Instantiated for a program whose layers cannot be divided: the error message contains the mistake, the op
/// and the placements of two of its operands, or of an operand and the result.
template <graph::mistake Kind, class Op, class First, class Second>
struct placement_refused {
  static_assert(sizeof(First) == 0,
                "weft: tensor parallel: the layers cannot be divided as their parameters say: see the "
                "mistake, the op and the placements of placement_refused<>; docs/strategies.md says what to "
                "change");
  static constexpr bool value = false;
};

namespace graph::detail {

/// A finding whose members can be template arguments.
struct plain_placement {
  placed kind = placed::whole;
  int dim = 0;
  index_t groups = 1, unit = 1;
  bool is_shared = false;
};
struct plain_finding {
  mistake kind = mistake::none;
  const op_info* op = nullptr;
  plain_placement first{}, second{};
};
constexpr plain_placement plain(const placement& p) {
  return {p.kind, p.dim, p.groups < 0 ? 0 : p.groups, p.unit < 0 ? 0 : p.unit, p.is_shared()};
}
constexpr plain_finding plain(const finding& f) {
  return {f.kind, f ? &*f.op : nullptr, plain(f.first), plain(f.second)};
}

template <plain_placement P>
consteval auto placement_as_type() {
  if constexpr (P.kind == placed::whole) return whole_on_every_rank();
  else if constexpr (P.kind == placed::sum) return sum_over_ranks();
  else if constexpr (P.kind == placed::maximum) return maximum_over_ranks();
  else if constexpr (P.is_shared) return shared_dim_of<P.dim, P.groups, P.unit>();
  else return divided_dim<P.dim, P.groups, P.unit>();
}

template <const op_info* Op>
consteval auto name_as_type() {
  return []<int... I>(std::integer_sequence<int, I...>) {
    return op_named<Op->name[I]...>();
  }(std::make_integer_sequence<int, static_cast<int>(std::char_traits<char>::length(Op->name))>{});
}

/// Divides `g`, the graph of a whole program, whose result must be whole, or in the stream if there is one.
constexpr placed_graph placed_program(const compute_graph& g, bool sequence) {
  const stream_extents stream = sequence ? stream_of(g) : stream_extents{};
  placed_graph p = place(g, leaf_placements(g, stream), stream);
  const int result = g.outputs[0];
  const shape& s = g[result].result.extents;
  const bool in_stream = stream.positions && s.order >= 3 && p.result == divided_along(1) &&
                         g.dims.canonical(s[1]) == stream.positions;
  if (!p.found && p.result.is_divided() && !in_stream)
    p.found = {mistake::result_divided, g[result].op, result, p.result, {}};
  return p;
}

}  // namespace graph::detail

/// The graph Source::frozen divided among ranks. `Sequence`: activations between divided layers are divided
/// by positions (Korthikanti et al., 2022). Does not compile if the layers do not fit each other.
template <class Source, bool Sequence>
class divided_graph {
  static constexpr graph::placed_graph placed() {
    graph::placed_graph p = graph::detail::placed_program(Source::frozen.thaw(), Sequence);
    if (!p.found) p.graph = verified(graph::without_dead_code(p.graph), graph::verify_expanded);
    return p;
  }
  struct outcome {
    graph::detail::plain_finding found;
    graph::detail::measured_graph graph;
  };
  static constexpr outcome outcome_ = [] {
    const graph::placed_graph p = placed();
    return outcome{graph::detail::plain(p.found), graph::detail::measured(p.graph)};
  }();
  static constexpr graph::detail::plain_finding found_ = outcome_.found;
  static constexpr graph::graph_sizes sizes_ = outcome_.graph.sizes;
  template <graph::detail::plain_placement P>
  using type_of = decltype(graph::detail::placement_as_type<P>());

  static constexpr auto frozen_graph() {
    if constexpr (found_.kind != graph::mistake::none)
      return (void)placement_refused<found_.kind, decltype(graph::detail::name_as_type<found_.op>()),
                                     type_of<found_.first>, type_of<found_.second>>::value,
             Source::frozen;
    else if constexpr (sizes_.fit_into(graph::detail::usual_sizes))
      return graph::detail::frozen<sizes_>(outcome_.graph.begin, outcome_.graph.begin);
    else return graph::detail::frozen_whole<sizes_>(placed().graph);
  }

 public:
  static constexpr auto frozen = frozen_graph();
};

}  // namespace weft
