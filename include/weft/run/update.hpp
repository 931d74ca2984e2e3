// SPDX-License-Identifier: MIT
// In-place updates: expressions computed into the memory of tensors, which they may read.
//
//   update(w, w - g * 0.1f);
//   update(slice<1>(x, 2, 5), y * 2);        // x[:, 2:5] = y * 2
//   update(c, {p.state(), m.state()}, bundled(p - m * 0.1f, m * 0.9f));
//
// All values of a bundle are computed from the old elements, whatever the order in which they are stored.
#pragma once

#include <weft/run/eval.hpp>
#include <weft/tensor/create.hpp>

namespace weft {

namespace runtime {

namespace detail {
/// Whether the dims of `value` are those of `target`, possibly with adjacent ones merged, as in a flat view.
[[gnu::cold]] bool merges_dims_of(const shape& target, const shape& value);

[[gnu::cold]] void check_target(const context& c, const tensor_state& target, std::size_t number,
                                const shape& extents, dtype type);

/// Whether a program copies a view of a tensor in which no element occurs twice.
constexpr bool copies_distinct_elements(const plan_view& p) {
  if (p.leaves != 1 || p.steps.size() != 1 || !p.steps[0].is_copy) return false;
  for (auto id = static_cast<std::size_t>(p.operands[0]);;
       id = static_cast<std::size_t>(p.values[id].source)) {
    const lower::value_entry& v = p.values[id];
    if (v.where != storage::view) return v.where == storage::leaf;
    if (v.view == view_kind::expand || v.view == view_kind::windows) return false;
  }
}

/// Whether values of shape `from` can be assigned to elements of shape `to`: NumPy's broadcasting, for
/// extents that are statically 1.
constexpr bool can_be_assigned(const shape& from, const shape& to) {
  for (int i = 0; i < from.order; ++i) {
    const index_t a = from.from_right(i), b = to.from_right(i);
    if (a != 1 && (i >= to.order || (a >= 0 && b >= 0 && a != b))) return false;
  }
  return true;
}

/// Throws value_error if the program computes only this rank's part of a value but the target is whole.
void check_whole(const context& c, const executable& p, const symbol_values& symbols, const specialization& i,
                 const tensor_state& target);

/// The dims of `target` along which other ranks hold other positions after `value` has been assigned to its
/// view `to`. Throws usage_error unless the view has all of these positions in a dim of its own.
[[gnu::cold]] positions_dims positions_of_target(const tensor_state& target, const strided& to,
                                                 const tensor_state& value);

/// Copies `value` to the elements of the view that `p` copies. `type`: the static shape of the value.
void assign(context& c, const executable& p, const operands& o, const tensor_state& value, const shape& type);

template <expression View, expression E, class Context>
void assign(const View& view, const E& e, Context& c) {
  using type = typename View::value_type;
  static_assert(std::is_same_v<typename E::value_type, type>,
                "weft: update: the value's element type differs from the tensor's: cast it");
  static_assert(can_be_assigned(E::static_shape, View::static_shape),
                "weft: update: the value does not broadcast to the shape of the target");
  constexpr executable program = executable_of<value_program<View>>;
  static_assert(
      copies_distinct_elements(program.plan),
      "weft: update: the target must be a tensor, or a view of one in which no element occurs twice: "
      "x[i], slice, select, transpose, permute, flip, chunk, or a reshape that needs no copy");
  if constexpr (std::is_same_v<typename E::value_type, type>)
    assign(c, program, operands_of(view, false), *eval(e, c).state(), E::static_shape);
}
}  // namespace detail

/// Sets `targets` to the outputs of `p`; `together` may take its kernel and launch it later. If it throws,
/// the targets are unchanged.
void execute_into(context& c, const executable& p, operands o, const tensor_list& targets,
                  launch_collector* together = nullptr);
}  // namespace runtime

/// Sets the elements of `targets` to the values of `e`, one each, computed as by eval(e, c), with the same
/// shapes and dtypes; a value may have adjacent dims of its target merged (flat_view, row_view). Targets may
/// be operands of `e` and may overlap: all values are computed from the old elements, and where targets
/// overlap each other, the last one holds. Computed in place if each element depends on no other element of
/// the target, otherwise through a buffer; `together` may take the kernel and launch it later. If a target
/// does not match (shape_error) or is on a device other than the context's (device_error), it throws with
/// nothing written.
template <expression E, std::derived_from<context> Context>
void update(Context& c, const tensor_list& targets, const E& e,
            runtime::launch_collector* together = nullptr) {
  static_assert(
      !runtime::detail::has_boundary<E>,
      "weft: update: a repeat, experts, a recurrent layer, batch norm, linear_cross_entropy or a list "
      "is several programs: evaluate it first, update(t, eval(e))");
  if constexpr (!runtime::detail::has_boundary<E>) {
    constexpr auto& p = runtime::executable_of<runtime::value_program<E, typename Context::programs>>;
    static_assert(!p.positions || p.plan.outputs.size() == 1,
                  "weft: update: where ranks divide positions (axis cp), one value at a time");
    runtime::execute_into(c, p, runtime::operands_of(e), targets, together);
  }
}

/// The same for one tensor: update(w, w - g * 0.1f).
template <element T, class Extents, bool Tracked, expression E, std::derived_from<context> Context = context>
void update(const tensor<T, Extents, Tracked>& target, const E& e, Context& c = default_context()) {
  static_assert(std::is_same_v<typename E::value_type, T>,
                "weft: update: the value's element type differs from the tensor's: cast it");
  if constexpr (std::is_same_v<typename E::value_type, T>) update(c, {target.state()}, e);
}

/// The same for some of the elements of a tensor, given as a view of it: x[i], slice, select, transpose,
/// permute, flip, chunk, or a reshape that needs no copy. The value broadcasts to the shape of the view, and
/// is computed from the old elements before any of them changes. Throws shape_error if it does not broadcast,
/// and what evaluating the view would throw.
///   update(x[3], ones_like(v));               // x[3] = 1
///   update(slice<1>(x, 2, 5), y * 2);         // x[:, 2:5] = y * 2
template <expression View, expression E, std::derived_from<context> Context = context>
  requires(!detail::is_leaf<View>)
void update(const View& view, const E& e, Context& c = default_context()) {
  runtime::detail::assign(view, e, c);
}

/// Sets all elements of a tensor, or of a view of one, to a number: update(x[3], 0). For bool, every number
/// but 0 is true. Throws value_error if a tensor of integers cannot hold the number.
template <expression Target, class Number>
  requires(std::is_arithmetic_v<Number> || element<Number>)
void update(const Target& target, Number number, context& c = default_context()) {
  using type = typename Target::value_type;
  static_assert(is_floating(dtype_of<type>) || std::is_integral_v<Number>,
                "weft: update: a tensor of integers cannot take a fraction: cast it");
  type value{};
  if constexpr (std::is_same_v<type, bool>) value = number != Number{};
  else value = detail::number_as<type>(number);
  runtime::detail::assign(target, full<type>(extents<>{}, value, c.where()), c);
}

namespace detail {
/// The elements of `t` in another shape; in-place changes of either are changes of the other.
inline std::shared_ptr<tensor_state> viewed_as(const std::shared_ptr<tensor_state>& t, const shape& extents) {
  auto view = alias_of(*t);
  if (!(extents == t->extents) && t->positions & (merged_positions - 1))
    view->positions = static_cast<positions_dims>(merged_positions | (positions_along(extents.order) - 1));
  view->extents = extents;
  view->viewed = t->viewed ? t->viewed : t;
  if (view->is_part_of_layer()) view->divided.reset();
  else if (view->divided) refuse_divided(*t);
  return view;
}
}  // namespace detail

/// The elements of `t`, of type T, as a tensor of shape [elements] that shares its memory; for a parameter of
/// a divided layer, those of this rank. Throws value_error if they have another type or are on other ranks.
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
