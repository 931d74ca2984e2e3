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
  if (to.extents.size() > 0) c.engine().copy(from, to);
  ++target.version();
}

}  // namespace detail

WEFT_DEFINE void execute_into(context& c, const executable& p, const operands& o, const tensor_list& targets,
                              launch_collector* together) {
  if (targets.size() != p.plan.outputs.size())
    refuse<usage_error>(
        {"weft: update: ", targets.size(), " targets for ", p.plan.outputs.size(), " values"});
  specialization& i = specialization_of(c, p, resolve_symbols(p.plan, o.leaves, o.sizes));
  for (std::size_t t = 0; t < targets.size(); ++t) {
    detail::check_target(c, *targets[t], t, i.output_extents(static_cast<int>(t)),
                         i.output_type(static_cast<int>(t)));
    weft::detail::require_lasting_memory(*targets[t]);
  }
  const bool direct = i.is_one_kernel_of_elements();  // cannot fail after it has begun
  tensor_list outputs;
  if (direct) outputs = targets;
  execute(c, i, o.leaves, o.numbers, outputs, {}, {}, direct ? together : nullptr);
  for (std::size_t t = 0; t < targets.size(); ++t) {
    if (!direct)
      copy_elements(c.engine(), targets[t]->type, targets[t]->memory.data(), outputs[t]->memory.data(),
                    targets[t]->extents.size());
    ++targets[t]->version();
  }
}

}  // namespace runtime
}  // namespace weft
