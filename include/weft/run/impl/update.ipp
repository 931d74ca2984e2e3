// SPDX-License-Identifier: MIT
// Definitions of <weft/run/update.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/run/update.hpp>

namespace weft {
namespace runtime {
namespace detail {

WEFT_DEFINE bool merges_dims_of(const shape& target, const shape& value) {
  if (target.size() != value.size() || value.size() == 0) return target.size() == value.size();
  int d = 0;
  for (int i = 0; i < value.order; ++i) {
    index_t n = d < target.order ? target[d++] : 1;
    while (n != value[i] && d < target.order) n *= target[d++];
    if (n != value[i]) return false;
  }
  while (d < target.order && target[d] == 1) ++d;
  return d == target.order;
}

WEFT_DEFINE void check_target(const context& c, const tensor_state& target, std::size_t number,
                              const shape& extents, dtype type) {
  if (!(target.where == c.where())) refuse_device("target", number, target, c.where());
  if (target.type == type && (target.extents == extents || merges_dims_of(target.extents, extents))) return;
  refuse<shape_error>({"weft: update: target ", number, " of shape ", target.extents, " and type ",
                       name_of(target.type), " cannot take a value of shape ", extents, " and type ",
                       name_of(type)});
}

WEFT_DEFINE positions_dims positions_of_target(const tensor_state& target, const strided& to,
                                               const tensor_state& value) {
  const positions_dims dims = merged_positions - 1, none = no_positions;
  const int missing = to.extents.order - value.extents.order;
  const auto in_view = [&](unsigned marks) { return missing < 0 ? marks >> -missing : marks << missing; };
  unsigned of_view = 0, of_target = 0;  // dims with positions that both have
  for (int v = 0; v < to.extents.order; ++v) {
    index_t stride = 1;
    for (int t = target.extents.order; t-- > 0; stride *= target.extents[t]) {
      if (to.stride[v] != stride || to.extents[v] != target.extents[t]) continue;
      const bool marked = target.positions & positions_along(t) & dims;
      if (!marked && !(in_view(value.positions & dims) >> v & 1)) continue;
      of_view |= 1u << v;
      of_target |= 1u << t;
      break;
    }
  }
  const bool is_sum = value.positions == sum_of_positions, was_sum = target.positions == sum_of_positions;
  const bool in_target = (target.positions & dims) == none || (target.positions & dims) == of_target;
  const bool in_value = (value.positions & dims) == none || in_view(value.positions & dims) == of_view;
  if (!in_target || !in_value || ((is_sum || was_sum) && of_target))
    refuse<usage_error>(
        {"weft: context: update writes ", value.extents, " to a view ", to.extents, " of a target ",
         target.extents,
         ", but this rank has only a part of the positions (axis cp): the view must have all positions of "
         "the target on this rank, in a dim of their own, which must be the value's dim of positions"});
  if (is_sum || was_sum) return sum_of_positions;
  const positions_dims merged = (target.positions | value.positions) & merged_positions;
  return static_cast<positions_dims>(of_target | (of_target ? merged : none));
}

WEFT_DEFINE void check_whole(const context& c, const executable& p, const symbol_values& symbols,
                             const specialization& i, const tensor_state& target) {
  if (c.layer_rank().ranks == 1 || target.is_part_of_layer()) return;
  tensor_state value(c.where(), i.output_extents(0), i.output_type(0), buffer());
  note_division(c, p.plan, symbols, value);
  if (value.divided) weft::detail::refuse_divided(value);
}

WEFT_DEFINE void assign(context& c, const executable& p, const operands& o, const tensor_state& value,
                        const shape& type) {
  tensor_state& target = *o.leaves[0];
  weft::detail::require_memory(target);
  if (!(target.where == c.where())) refuse_device("target", 0, target, c.where());
  specialization& i = specialization_of(c, p, resolve_symbols(p.plan, o.leaves, o.sizes));
  const strided to = i.copied_view(target.memory.data());
  strided from;
  from.type = value.type;
  from.pointer = value.memory.data();
  from.extents = to.extents;
  index_t elements = 1;
  for (int k = 0; k < std::max(to.extents.order, value.extents.order); ++k) {
    const index_t extent = value.extents.from_right(k);
    const bool is_repeated = type.from_right(k) == 1;
    if (!is_repeated && extent != to.extents.from_right(k))
      refuse<shape_error>({"weft: update: a value of shape ", value.extents,
                           " does not broadcast to the target's shape ", to.extents});
    if (k < to.extents.order) from.stride[to.extents.order - 1 - k] = is_repeated ? 0 : elements;
    elements *= extent;
  }
  const bool divides = c.layer_rank().context_ranks > 1;
  if (divides && (target.positions != no_positions || value.positions != no_positions))
    target.positions = positions_of_target(target, to, value);
  if (to.extents.size() > 0) c.engine().copy(from, to);
  ++target.version();
}

}  // namespace detail

WEFT_DEFINE void execute_into(context& c, const executable& p, operands o, const tensor_list& targets,
                              launch_collector* together) {
  if (targets.size() != p.plan.outputs.size())
    refuse<usage_error>(
        {"weft: update: ", targets.size(), " targets for ", p.plan.outputs.size(), " values"});
  const symbol_values symbols = resolve_symbols(p.plan, o.leaves, o.sizes, c.layer_rank());
  place_operands(c, p.plan, symbols, o.leaves,
                 [&](const auto& leaf, const placement& to) { return placed(c, leaf, to); });
  specialization& i = specialization_of(c, p, symbols);
  const positions_dims positions = positions_of_result(c, p.positions, o.leaves, &i.known_positions);
  detail::check_whole(c, p, symbols, i, *targets[0]);
  for (std::size_t t = 0; t < targets.size(); ++t) {
    detail::check_target(c, *targets[t], t, i.output_extents(static_cast<int>(t)),
                         i.output_type(static_cast<int>(t)));
    weft::detail::require_lasting_memory(*targets[t]);
  }
  const bool direct = i.is_one_kernel_of_elements();  // cannot fail once it has begun
  tensor_list outputs;
  if (direct) outputs = targets;
  execute(c, i, o.leaves, o.numbers, outputs, {}, {}, direct ? together : nullptr);
  for (std::size_t t = 0; t < targets.size(); ++t) {
    if (!direct)
      copy_elements(c.engine(), targets[t]->type, targets[t]->memory.data(), outputs[t]->memory.data(),
                    targets[t]->extents.size());
    if (p.positions) targets[t]->positions = positions;
    ++targets[t]->version();
  }
}

}  // namespace runtime
}  // namespace weft
