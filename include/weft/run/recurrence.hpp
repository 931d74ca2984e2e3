// SPDX-License-Identifier: MIT
// Recurrences in expressions: a step that is repeated for each element of a sequence, compiled once.
//
// A recurrence is a boundary: the sequence is evaluated; then each step is a program that reads its element
// and the previous state; then a few programs join the states. The length is known only at evaluation.
#pragma once

#include <weft/op/all.hpp>
#include <weft/run/list.hpp>
#include <weft/tensor/create.hpp>

namespace weft {

/// The states s[t] = step(x[t], s[t - 1]) of a recurrence over `operand` [T, ...], as [T, ...]. `Step` is a
/// module; Step::state_of(extents of x[t]) returns the extents of a state. The state before the first step is
/// `start`, a single expression, or zeros if there is none.
template <class Step, expression X, expression... Start>
struct recurrence_node : expression_base {
  using value_type = typename X::value_type;
  static constexpr shape state_shape = [] {
    shape one;
    for (int d = 1; d < X::static_shape.order; ++d) one.append(X::static_shape[d]);
    return Step::state_of(one);
  }();
  static constexpr shape static_shape = [] {
    shape all{1, {X::static_shape[0]}};
    for (int d = 0; d < state_shape.order; ++d) all.append(state_shape[d]);
    return all;
  }();
  static constexpr long node_count = detail::sum_of_counts({X::node_count, Start::node_count...});

  X operand;
  operand_list<Start...> start;
  Step step;
  index_t call = detail::next_call();
  constexpr auto operator[](index_t i) const { return select<0>(*this, i); }
};

namespace detail {
template <class Step, class X, class... Start>
struct parts<recurrence_node<Step, X, Start...>> {
  using type = expression_list<X, Start...>;
};
template <class Step, class X, class... Start>
inline constexpr unsigned own_part<recurrence_node<Step, X, Start...>> = boundary_part;
}  // namespace detail

namespace runtime {
namespace detail {

template <class Variable, class Step, class X, class... Start>
inline constexpr bool reads_after_boundary<Variable, recurrence_node<Step, X, Start...>> =
    (reads_after_boundary<Variable, X> || ... || reads_after_boundary<Variable, Start>);

/// A leaf like `Leaf`, with any number of rows.
template <class Leaf>
struct any_rows_of;
template <class T, index_t Rows, index_t... Rest, bool Tracked>
struct any_rows_of<tensor<T, extents<Rows, Rest...>, Tracked>> {
  using type = tensor<T, extents<dyn, Rest...>, Tracked>;
};

/// Whether ranks divide the positions of sequences (parallel/context_parallel.hpp).
template <class Evaluator>
concept divides_positions = requires {
  typename Evaluator::options::positions_service;
};

/// An evaluator that does not compute the steps one by one: it has a function scan<Element, State>(x, first,
/// step), which returns the states of a recurrence over x; a null `first` stands for zeros.
template <class Evaluator>
concept sequence_scanner = Evaluator::scans_sequences;

/// The name of a recurrence in errors: Step::name if there is one.
template <class Step>
constexpr const char* name_of_recurrence() {
  if constexpr (requires { Step::name; }) return Step::name;
  else return "recurrence";
}

[[noreturn, gnu::cold]] inline void refuse_no_steps(const char* name) {
  refuse<shape_error>({"weft: ", name, ": the sequence has no positions: its first extent is 0"});
}

[[noreturn, gnu::cold]] inline void refuse_start(const char* name, const shape& row, const shape& of_state) {
  shape start;
  for (int d = 1; d < row.order; ++d) start.append(row[d]);
  refuse<shape_error>(
      {"weft: ", name, ": the first state has the shape ", start, ", but later states the shape ", of_state});
}

template <class Resolver, class Variables, class Step, class X, class... Start>
auto resolve_node(Resolver& to, const Variables& v, const recurrence_node<Step, X, Start...>& n) {
  using node_type = recurrence_node<Step, X, Start...>;
  using T = typename X::value_type;
  auto& evaluator = to.evaluator;
  static_assert(!divides_positions<std::remove_cvref_t<decltype(evaluator)>>,
                "weft: recurrence: ranks divide positions (axis cp), but a recurrence would see only those "
                "of its own rank");
  const auto x = as_leaf(evaluator, resolve(to, v, n.operand));
  const index_t length = x.extents()[0];
  if (length == 0) refuse_no_steps(name_of_recurrence<Step>());
  const device& where = x.state()->where;
  // Uses a look-up, because its gradient is added to that of x in place; the gradient of a slice would be as
  // large as x.
  const auto numbers = arange<std::int64_t>(length, where);
  const auto element = [&](index_t t) {
    constexpr index_t one = X::static_shape.order > 0;  // depends on X: nvcc does not evaluate shapes here
    const tensor<std::int64_t, extents<one>> number(part_of(*numbers.state(), t, {1, {1}}));
    return select<0, 0>(index_select<0>(one_operand<X, std::remove_const_t<decltype(x)>>(x),
                                        one_operand<Step, std::remove_const_t<decltype(number)>>(number)));
  };
  using one_state = tensor<T, typename extents_from<node_type::state_shape>::type>;
  using one_row = decltype(evaluator.eval_program(unsqueeze<0>(std::declval<one_state>())));
  using state = typename any_rows_of<one_row>::type;
  using result = tensor<T, typename extents_from<node_type::static_shape>::type, state::requires_grad>;
  const auto next = [&](index_t t, const state& before) {
    auto after = n.step(element(t), select<0, 0>(one_operand<Step, state>(before)));
    static_assert(std::is_same_v<typename decltype(after)::value_type, T>,
                  "weft: recurrence: a step must keep the element type of the sequence");
    return state(eval_block(evaluator, unsqueeze<0>(std::move(after))));
  };
  shape one, extents{1, {1}};
  for (int d = 1; d < x.extents().order; ++d) one.append(x.extents()[d]);
  const shape of_state = Step::state_of(one);
  for (int d = 0; d < of_state.order; ++d) extents.append(of_state[d]);
  if constexpr (sequence_scanner<std::remove_cvref_t<decltype(evaluator)>>) {
    std::shared_ptr<tensor_state> first;
    if constexpr (sizeof...(Start) > 0)
      first = n.start.apply([&](const auto& e) { return as_leaf(evaluator, resolve(to, v, e), 1).state(); });
    using one_element = decltype(evaluator.eval_program(select<0, 0>(x)));
    return result(evaluator.template scan<one_element, one_state>(x.state(), first, n.step));
  }
  state now;
  if constexpr (sizeof...(Start) > 0) {
    now = n.start.apply([&](const auto& e) {
      static_assert(std::is_same_v<typename std::remove_cvref_t<decltype(e)>::value_type, T>,
                    "weft: recurrence: the first state must have the element type of the sequence");
      const auto first = evaluator.eval_program(unsqueeze<0>(resolve(to, v, e)));
      if (!(first.extents() == extents)) refuse_start(name_of_recurrence<Step>(), first.extents(), of_state);
      return state(first);
    });
  } else {
    now = state(make_zeros(where, extents, dtype_of<T>));
  }
  recycled_vector<state> states;
  for (index_t t = 0; t < length; ++t) states.push_back(now = next(t, now));
  return result(joined<0>(evaluator, states.begin(), length));
}

}  // namespace detail
}  // namespace runtime
}  // namespace weft
