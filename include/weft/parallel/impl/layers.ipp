// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/layers.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/parallel/layers.hpp>

namespace weft {
namespace parallel {

WEFT_DEFINE void check_division(const std::string& name, const shape& whole, const placement& p,
                                const communicator& ranks) {
  const index_t e = whole[p.dim], units = e / (p.groups * p.unit), n = ranks.size();
  const bool each_has_some = p.is_shared() ? units > 0 : count_of_part(units, n, n - 1, p.pieces) > 0;
  if (e % (p.groups * p.unit) || !each_has_some)
    refuse<shape_error>({"weft: bind: parameter ", name, " of shape ", to_string(whole),
                         " cannot be divided among ", ranks.size(), " ranks along ", to_string(p)});
}

WEFT_DEFINE void divide_parameter(const std::string& name, tensor_state& p, const placement& where,
                                  const communicator& layers) {
  check_division(name, p.extents, where, layers);
  const bool is_deferred = p.is_deferred();
  const shape whole = p.extents;
  if (!is_deferred) p.memory = cut(p, where, layers.size(), layers.rank())->memory;
  p.extents = part_extents(whole, where, layers.size(), layers.rank());
  p.divided =
      std::make_shared<division>(division{name, whole, where, layers.size(), layers.rank(), is_deferred});
  p.grad.reset();
  ++p.version();
}

WEFT_DEFINE bool is_first_in_layer(const tensor_state& t, int layer_rank) {
  if (!t.is_part_of_layer()) return layer_rank == 0;
  const division& d = *t.divided;
  if (!d.where.is_shared() || d.rank == 0) return true;
  const index_t units = units_of(d);
  return unit_of_rank(units, d.ranks, d.rank - 1) != unit_of_rank(units, d.ranks, d.rank);
}

WEFT_DEFINE void started_collectives::wait_for(int result) {
  for (started& s : all_)
    if (s.result == result) s.messages.wait();
  std::erase_if(all_, [&](const started& s) { return s.result == result; });
}

WEFT_DEFINE work start_collective(backend& where, const rank_groups& groups, std::string_view op,
                                  const attributes& at, const strided& in, const strided& out) {
  const bool over_positions = op == op::sum_over_positions::name;
  communicator* const positions = groups.context() ? &groups.context()->ranks() : nullptr;
  communicator* const ranks = over_positions ? positions : groups.layers();
  if (!ranks || ranks->size() == 1) {
    where.copy(in, out);
    return {};
  }
  const comm_options o = groups.labelled(std::string(op));
  const memory_space space = message_space(where);
  const elements mine{in.pointer, in.size(), in.type, space},
      result{out.pointer, out.size(), out.type, space};
  if (over_positions || op == "all_reduce") {
    where.copy(in, out);
    const bool of_largest = !over_positions && at[0] != 0;
    return ranks->all_reduce(result, of_largest ? reduction::maximum : reduction::sum, o);
  }
  const bool gathers = op == "all_gather";
  const strided& all = gathers ? out : in;
  const index_t rows = all.extents[0], row = rows ? all.size() / rows : 0;
  const placement parts = divided_along(0, 1, at[1], at[2]);
  rank_counts counts;
  for (int r = 0; r < ranks->size(); ++r)
    counts.push_back(indices_in_group(parts, rows, ranks->size(), r).count * row);
  return gathers ? ranks->all_gather(mine, result, counts, o)
                 : ranks->reduce_scatter(mine, result, reduction::sum, counts, o);
}

}  // namespace parallel
}  // namespace weft
