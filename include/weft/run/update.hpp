// SPDX-License-Identifier: MIT
// Updates in place: expressions computed into the memory of tensors, which they may read.
//
//   update(c, {p.state(), m.state()}, bundled(p - m * 0.1f, m * 0.9f));
//
// All values of a bundle are computed from the old elements, whatever the order in which they are stored.
#pragma once

#include <weft/run/eval.hpp>

namespace weft {

namespace runtime {

namespace detail {
/// Whether the dims of `value` are those of `target`, possibly with neighbouring ones merged, as in a flat
/// view.
[[gnu::cold]] bool merges_dims_of(const shape& target, const shape& value);

[[gnu::cold]] void check_target(const tensor_state& target, std::size_t number, const shape& extents,
                                dtype type);
}  // namespace detail

/// Sets `targets` to the outputs of `p`, whose kernel may be left to `together`. If it throws, they are
/// unchanged.
void execute_into(context& c, const executable& p, const operands& o, const tensor_list& targets,
                  launch_collector* together = nullptr);
}  // namespace runtime

/// Sets the elements of `targets` to the values of `e`, one each, of the same shapes and dtypes; a value may
/// have neighbouring dims of its target merged (flat_view, row_view). Targets may be operands of `e` and may
/// overlap: all values are computed from the old elements; if targets overlap each other, the last one holds.
/// Computed in place if each element depends on no other element of the target, else through a buffer; its
/// kernel may be left to `together`. Throws shape_error, with nothing written, if a target does not fit.
template <expression E>
void update(context& c, const tensor_list& targets, const E& e,
            runtime::launch_collector* together = nullptr) {
  static_assert(
      !runtime::detail::has_boundary<E>,
      "weft: update: a repeat, experts, a recurrent layer, batch norm, linear_cross_entropy or a list "
      "is several programs: evaluate it first, update(t, eval(e))");
  if constexpr (!runtime::detail::has_boundary<E>)
    runtime::execute_into(c, runtime::executable_of<runtime::value_program<E>>, runtime::operands_of(e),
                          targets, together);
}

/// The same for one tensor: update(w, w - g * 0.1f).
template <element T, class Extents, bool Tracked, expression E>
void update(const tensor<T, Extents, Tracked>& target, const E& e, context& c = default_context()) {
  static_assert(std::is_same_v<typename E::value_type, T>,
                "weft: update: the value has another element type than the tensor: cast it");
  if constexpr (std::is_same_v<typename E::value_type, T>) update(c, {target.state()}, e);
}

namespace detail {
/// The elements of `t` in another shape; changes in place of one are changes of the other.
inline std::shared_ptr<tensor_state> viewed_as(const std::shared_ptr<tensor_state>& t, const shape& extents) {
  auto view = alias_of(*t);
  view->extents = extents;
  view->viewed = t;
  if (view->is_part_of_layer()) view->divided.reset();
  return view;
}
}  // namespace detail

/// The elements of `t`, of type T, as a tensor of shape [elements] that shares its memory. Throws value_error
/// if they are of another type.
template <element T>
tensor<T, extents<dyn>> flat_view(const std::shared_ptr<tensor_state>& t) {
  const shape& s = detail::typed_state(dtype_of<T>, {1, {dyn}}, t)->extents;
  return tensor<T, extents<dyn>>(detail::viewed_as(t, {1, {s.size()}}));
}

/// The same with shape [rows, last extent]: the last dim is kept and the others are merged.
template <element T>
tensor<T, extents<dyn, dyn>> row_view(const std::shared_ptr<tensor_state>& t) {
  const shape& s = detail::typed_state(dtype_of<T>, {1, {dyn}}, t)->extents;
  const index_t last = std::max<index_t>(s.last(), 1);
  return tensor<T, extents<dyn, dyn>>(detail::viewed_as(t, {2, {s.size() / last, last}}));
}

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/run/impl/update.ipp>
#endif
