// SPDX-License-Identifier: MIT
// Updates in place: expressions computed into the memory of tensors they may read.
//
//   update(c, {p.state(), m.state()}, bundled(p - m * 0.1f, m * 0.9f));
//
// All values of a bundle are computed from the old elements, whatever the order they are stored in.
#pragma once

#include <weft/run/eval.hpp>

namespace weft {

namespace run {
/// Sets `targets` to the outputs of `p`; in place only where a program may write what it reads.
inline void play_into(context& c, const playable& p, const operands& o,
                      const tensor_list& targets, bool in_place) {
  tensor_list outputs;
  if (in_place) outputs = targets;
  play(c, p, o.leaves, o.numbers, resolve_symbols(p.plan, o.leaves, o.sizes), outputs);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (!in_place) copy_elements(c.engine(), targets[i]->type, targets[i]->memory.data(), outputs[i]->memory.data(), targets[i]->extents.size());
    ++targets[i]->version;
  }
}
}  // namespace run

/// Sets the elements of `targets` to the values of `e`, one each, of the same shapes.
template <expression E>
void update(context& c, const tensor_list& targets, const E& e) {
  using program = run::value_program<E>;
  // One element-wise kernel reads each element before it writes it; anything else might not.
  constexpr bool in_place = program::plan.steps.size() == 1 && program::plan.kernels.size() == 1 &&
                            program::plan.kernels[0].division == kernel_division::elements;
  run::play_into(c, run::playable_of<program>(), run::operands_of(e), targets, in_place);
}

/// A tensor's elements, which must be of type T, as one dim: the same memory under another shape. Throws
/// value_error where they are of another type.
template <element T>
tensor<T, extents<dyn>> flat_view(const std::shared_ptr<tensor_state>& t) {
  auto view = alias_of(*detail::defined_state(t));
  view->extents = {1, {t->extents.size()}};
  return tensor<T, extents<dyn>>(std::move(view));
}

/// The same with the last dim kept and the others counted as rows.
template <element T>
tensor<T, extents<dyn, dyn>> row_view(const std::shared_ptr<tensor_state>& t) {
  auto view = alias_of(*detail::defined_state(t));
  const index_t last = std::max<index_t>(t->extents.last(), 1);
  view->extents = {2, {t->extents.size() / last, last}};
  return tensor<T, extents<dyn, dyn>>(std::move(view));
}

}  // namespace weft
