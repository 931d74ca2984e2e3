// SPDX-License-Identifier: MIT
// Definitions of <weft/run/eval.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/base/record_function.hpp>
#include <weft/run/eval.hpp>

namespace weft {
namespace runtime {

WEFT_DEFINE specialization& specialization_of(context& c, const executable& p, const symbol_values& symbols) {
  const context::use own(c);
  return c.specialization_of(p.plan, p.plan.values.data(), p.kernels, symbols);
}

namespace detail {

WEFT_DEFINE void refuse_device(const char* what, std::size_t number, const tensor_state& t,
                               const device& here) {
  const std::string contents = t.memory.named_contents();
  const std::string named = contents.empty() ? "" : " (" + contents + ")";
  refuse<device_error>(
      {"weft: ", what, " ", number, named, " of shape ", t.extents, " is on device ", t.where->name(),
       ", but the context computes on ", here->name(),
       std::string_view(t.where->name()) == here->name() ? " (another device of that name)" : "",
       ": pass a context of the tensor's device, or move the tensor: x.to(c.where())"});
}

WEFT_DEFINE void refuse_labels(const tensor_state& x, const tensor_state& labels) {
  refuse<shape_error>({"weft: linear_cross_entropy: there are ", x.extents[0],
                       " rows, but the labels have the shape ", labels.extents});
}

WEFT_DEFINE void set_leaves(const context& c, specialization& i, const tensor_list& leaves) {
  for (std::size_t l = 0; l < leaves.size(); ++l) {
    if (!leaves[l]) continue;
    if (!(leaves[l]->where == c.where())) refuse_device("operand", l, *leaves[l], c.where());
    if (leaves[l]->divided && !i.reads_extents(static_cast<int>(l), leaves[l]->extents))
      weft::detail::require_memory(*leaves[l]);
    weft::detail::require_own_memory(*leaves[l]);
    i.set_leaf(l, leaves[l]->memory.data());
  }
}

WEFT_DEFINE bool can_write_to(specialization& i, const tensor_list& outputs) {
  for (std::size_t o = 0; o < outputs.size(); ++o)
    i.set_output(o, {outputs[o] ? outputs[o]->memory.data() : nullptr});
  return i.can_overwrite();
}

WEFT_DEFINE void set_outputs(const context& c, specialization& i, tensor_list& outputs,
                             const tensor_list& sums) {
  outputs.resize(i.output_count());
  for (std::size_t o = 0; o < outputs.size(); ++o) {
    const int number = static_cast<int>(o);
    const bool adds = o < sums.size() && sums[o] && i.has_output(number) && i.can_add(number);
    if (adds) outputs[o] = sums[o];
    else if (!outputs[o] && i.has_output(number))
      outputs[o] =
          make_state(c.where(), i.output_extents(number), i.output_type(number), i.output_op(number));
    i.set_output(o, {outputs[o] ? outputs[o]->memory.data() : nullptr, adds});
  }
}

WEFT_DEFINE void copy_to_given(const context& c, tensor_list& outputs, const tensor_list& given) {
  for (std::size_t o = 0; o < given.size(); ++o) {
    if (!given[o]) continue;
    copy_elements(c.engine(), given[o]->type, given[o]->memory.data(), outputs[o]->memory.data(),
                  given[o]->extents.size());
    outputs[o] = given[o];
  }
}

}  // namespace detail

WEFT_DEFINE void execute(context& c, specialization& i, const tensor_list& leaves,
                         const recycled_vector<any_number>& numbers, tensor_list& outputs, const purpose& why,
                         const tensor_list& sums, launch_collector* together) {
  const context::turn own(c);
  execution_hooks* const hooks = c.hooks();
  if (hooks) hooks->before_program(leaves, why);
  detail::set_leaves(c, i, leaves);
  tensor_list given;  // the given outputs, if the program writes to buffers
  if (!outputs.empty() && !detail::can_write_to(i, outputs)) given.swap(outputs);
  detail::set_outputs(c, i, outputs, sums);
  if (together && (!given.empty() || !together->collects(i))) together = nullptr;
  i.run({c.engine(), c.arena(i.arena_bytes()), numbers, c.next_random(), c.on_tap, hooks, together});
  if (together) {
    together->keep(leaves);
    together->keep(outputs);
  }
  if (!given.empty()) detail::copy_to_given(c, outputs, given);
  if (hooks) hooks->after_program(leaves, why);
}

WEFT_DEFINE std::shared_ptr<tensor_state> execute_value(context& c, const executable& p, operands o) {
  const record_function range("eval");
  tensor_list outputs;
  const symbol_values symbols = resolve_symbols(p.plan, o.leaves, o.sizes, c.layer_rank());
  place_operands(c, p.plan, symbols, o.leaves,
                 [&](const auto& leaf, const placement& to) { return placed(c, leaf, to); });
  execute(c, p, o.leaves, o.numbers, symbols, outputs);
  note_division(c, p.plan, symbols, *outputs[0]);
  return outputs[0];
}

}  // namespace runtime
}  // namespace weft
