// SPDX-License-Identifier: MIT
// Experts in expressions: modules, each of which computes the rows that are routed to it.
//
// How many rows an expert computes is known only once the probabilities are. So experts are a boundary:
// operand and probabilities are evaluated; then each expert is executed over its rows, all by one program
// with different numbers of rows; then one more program adds up their results. No expert computes a row that
// is not routed to it. An expert without rows is executed with none, so that its parameters have gradients,
// which are zero.
#pragma once

#include <memory>
#include <string>

#include <weft/op/all.hpp>
#include <weft/run/boundary.hpp>
#include <weft/run/routing.hpp>
#include <weft/tensor/create.hpp>

namespace weft {

/// For each row of `operand`, the sum of the results of its experts, weighted by their probabilities, which
/// are divided by their sum if `Renormalise`. [..., C], [..., experts] -> [..., C].
template <bool Renormalise, class Expert, expression X, expression Probabilities>
struct experts_node : expression_base {
  using value_type = typename X::value_type;
  static constexpr shape static_shape = X::static_shape;
  static constexpr long node_count = detail::sum_of_counts({X::node_count, Probabilities::node_count});

  X operand;
  Probabilities probabilities;
  const std::vector<Expert>* experts;
  expert_choice choice;
  index_t call = detail::next_call();
};

/// The value of `operand`. A backward pass through it also adds the gradients of the scalar `loss`, as if
/// `loss` were part of the differentiated value.
template <expression X, expression Loss>
struct attached_node : expression_base {
  using value_type = typename X::value_type;
  static constexpr shape static_shape = X::static_shape;
  static constexpr long node_count = detail::sum_of_counts({X::node_count, Loss::node_count});

  X operand;
  Loss loss;
  index_t call = detail::next_call();
};

/// `x`; in the backward pass the gradients of the scalar `loss` are added as well, so that a loss inside a
/// layer need not be passed out of a `repeat`. The backward pass must start from a scalar loss; its value
/// does not include `loss`.
template <expression X, expression Loss>
auto with_loss(X x, Loss loss) {
  static_assert(Loss::static_shape.order == 0, "weft: with_loss: the loss must be a scalar");
  return attached_node<X, Loss>{{}, detail::as_written(std::move(x)), detail::as_written(std::move(loss))};
}

namespace detail {
template <class X, class Loss>
struct parts<attached_node<X, Loss>> {
  using type = expression_list<X, Loss>;
};
template <class X, class Loss>
inline constexpr unsigned own_part<attached_node<X, Loss>> = boundary_part;
template <bool Renormalise, class Expert, class X, class Probabilities>
struct parts<experts_node<Renormalise, Expert, X, Probabilities>> {
  using type = expression_list<X, Probabilities>;
};
template <bool Renormalise, class Expert, class X, class Probabilities>
inline constexpr unsigned own_part<experts_node<Renormalise, Expert, X, Probabilities>> = boundary_part;
}  // namespace detail

namespace runtime {
namespace detail {

template <class Variable, bool Renormalise, class Expert, class X, class Probabilities>
inline constexpr bool reads_after_boundary<Variable, experts_node<Renormalise, Expert, X, Probabilities>> =
    reads_after_boundary<Variable, X> || reads_after_boundary<Variable, Probabilities>;
template <class Variable, class X, class Loss>
inline constexpr bool reads_after_boundary<Variable, attached_node<X, Loss>> =
    reads_after_boundary<Variable, X> || reads_after_boundary<Variable, Loss>;

/// The leaf `t` [..., E] as rows [N, E].
template <class T>
auto as_rows(const T& t) {
  constexpr int order = T::static_shape.order;
  if constexpr (order > 2) return flatten<0, order - 2>(t);
  else if constexpr (order == 2) return t;
  else return unsqueeze<0>(t);
}

/// `count` rows; row i is the sum of the rows of `x` whose index is i.
template <expression Index, expression X>
auto added_rows(Index index, X x, index_t count) {
  using how = attr<dyn, static_cast<index_t>(index_reader::index_select)>;
  return weft::detail::apply_sized<op::index_add, how>({count}, std::move(index), std::move(x));
}

/// The weights [rows, choices] of the chosen experts.
template <bool Renormalise, expression P, expression Chosen>
auto weights_of(P probabilities, Chosen chosen) {
  auto best = gather<1>(std::move(probabilities), std::move(chosen));
  if constexpr (Renormalise) return let(std::move(best), [](auto w) { return w / sum(w, dims<1>, keepdim); });
  else return best;
}

/// The extents `s` in the extents type that they have in an expression.
template <index_t... E>
extents<E...> typed_extents(extents<E...>*, const shape& s) {
  return [&]<int... D>(std::integer_sequence<int, D...>) { return extents<E...>{s[D]...}; }
  (std::make_integer_sequence<int, extents<E...>::order>{});
}

using index_tensor = tensor<std::int64_t, extents<dyn>>;
inline index_tensor indices_on(const device& where, const std::vector<std::int64_t>& values) {
  return from(extents<dyn>{static_cast<index_t>(values.size())}, values, where);
}

/// Sends rows to the experts of all ranks, and appends to `parts` the rows that each expert of this rank is
/// to compute; the backward pass sends their gradients back.
template <class Evaluator>
void send_to_experts(Evaluator& evaluator, const std::shared_ptr<routing>& way,
                     const std::shared_ptr<tensor_state>& rows, tensor_list& parts) {
  const auto arrived = way->to_experts(rows);
  for (index_t n = 0; n < way->own_experts(); ++n) parts.push_back(way->part(*arrived, n));
  evaluator.remember(arrived, {rows}, [way, parts, width = rows->extents[1], type = rows->type](const auto&) {
    if (!way->goes_back) return tensor_list(1);
    tensor_list gradients;
    for (const auto& p : parts) gradients.push_back(std::exchange(p->grad, nullptr));
    return tensor_list{way->to_rows(way->joined(gradients, width, type))};
  });
}

/// Sends the results of this rank's experts back to the ranks from which the rows came.
template <class Evaluator>
std::shared_ptr<tensor_state> send_back(Evaluator& evaluator, const std::shared_ptr<routing>& way,
                                        const tensor_list& results, index_t width, dtype type) {
  const auto value = way->to_rows(way->joined(results, width, type));
  evaluator.remember(value, results, [way](const auto& cotangent) {
    way->goes_back = cotangent != nullptr;
    if (!cotangent) return tensor_list(static_cast<std::size_t>(way->own_experts()));
    const auto arrived = way->to_experts(cotangent);
    tensor_list gradients;
    for (index_t n = 0; n < way->own_experts(); ++n) gradients.push_back(way->part(*arrived, n));
    return gradients;
  });
  return value;
}

[[noreturn, gnu::cold]] inline void refuse_experts(std::size_t experts, const shape& probabilities) {
  refuse<shape_error>({"weft: experts: there are ", static_cast<index_t>(experts),
                       " experts for probabilities of shape ", probabilities});
}

/// Throws shape_error unless an expert keeps the shape of its rows.
inline void check_result(index_t expert, const shape& rows, const shape& result) {
  if (!(rows == result))
    refuse<shape_error>({"weft: experts: expert ", expert, " returned ", result, " for ", rows});
}

/// The random state for expert `e`. Its random numbers do not depend on what other experts draw, and what
/// follows depends on none of theirs, so that a rank with only some of the experts draws the same numbers.
inline context::random_state randomness_of(const context::random_state& before, index_t e) {
  return {before.seed, mix(mix(before.step, before.programs), static_cast<std::uint64_t>(e)), 0};
}

/// The value of an experts_node for the leaves x and p.
template <bool Renormalise, class Evaluator, class X, class P, class Expert>
auto apply_experts(Evaluator& evaluator, const X& x, const P& p, const std::vector<Expert>& experts,
                   const expert_choice& choice) {
  using T = typename X::value_type;
  context& c = evaluator.run_context();
  if (static_cast<index_t>(experts.size()) != p.extents().last()) refuse_experts(experts.size(), p.extents());
  const auto chosen = evaluator.unrecorded(topk<-1>(as_rows(p), choice.per_row).indices);
  const auto way =
      std::make_shared<routing>(c, *chosen.state(), x.extents(), p.extents().last(), choice.capacity_factor);
  const positions_dims positions = x.state()->positions;
  const auto indices = [&](const std::vector<std::int64_t>& of) {  // of rows at positions of this rank
    auto numbers = indices_on(c.where(), of);
    if (positions != no_positions) numbers.state()->positions = positions_along(0) | own_rows;
    return numbers;
  };
  const auto numbers = indices(way->rows());
  const auto rows = evaluator.eval_program(index_select<0>(as_rows(x), numbers));
  tensor_list parts, results;
  send_to_experts(evaluator, way, rows.state(), parts);
  const context::random_state before = c.randomness();
  for (index_t n = 0; n < way->own_experts(); ++n) {
    const index_t e = way->first_expert() + n;
    const context::randomness_scope of_expert(c, randomness_of(before, e));
    const auto y = evaluator.eval(experts[static_cast<std::size_t>(e)](
        std::remove_const_t<decltype(rows)>(parts[static_cast<std::size_t>(n)])));
    static_assert(std::is_same_v<typename decltype(y)::value_type, T>,
                  "weft: experts: an expert must keep the element type of its operand");
    check_result(e, parts[static_cast<std::size_t>(n)]->extents, y.extents());
    results.push_back(y.state());
  }
  c.set_randomness({before.seed, before.step, before.programs + 1});
  const index_t width = x.extents().last();
  const auto returned = send_back(evaluator, way, results, width, dtype_of<T>);
  auto weights = index_select<0>(reshape<dyn>(weights_of<Renormalise>(as_rows(p), chosen)),
                                 indices(way->choices()));
  auto weighted = std::remove_const_t<decltype(rows)>(returned) * unsqueeze<1>(std::move(weights));
  const auto sum = evaluator.eval_program(
      reshape(added_rows(numbers, std::move(weighted), x.extents().size() / std::max<index_t>(width, 1)),
              typed_extents(static_cast<extents_of<X>*>(nullptr), x.extents())));
  sum.state()->positions = positions;
  return sum;
}

/// The number of programs by which apply_experts advances the random state.
inline constexpr int programs_around_experts = 4;

template <class Resolver, class Variables, bool Renormalise, class Expert, class X, class P>
auto resolve_node(Resolver& to, const Variables& v, const experts_node<Renormalise, Expert, X, P>& n) {
  const auto x = as_leaf(to.evaluator, resolve(to, v, n.operand));
  const auto p = as_leaf(to.evaluator, resolve(to, v, n.probabilities), 1);
  const auto value = [&](auto& evaluator) {
    return apply_experts<Renormalise>(evaluator, x, p, *n.experts, n.choice);
  };
  if constexpr (!block_divider<typename Resolver::evaluator_type>) return value(to.evaluator);
  else
    return to.evaluator.composite(x, p, programs_around_experts, value, [&](auto& inner, auto visit) {
      using rows = std::remove_cvref_t<decltype(inner.eval_program(
          index_select<0>(as_rows(x), std::declval<index_tensor>())))>;
      const index_t width = x.extents().last(), all = x.extents().size() / std::max<index_t>(width, 1);
      const index_t mean = all * n.choice.per_row / static_cast<index_t>(n.experts->size());
      const rows some(make_recycled<tensor_state>(inner.run_context().where(), shape{2, {mean, width}},
                                                  dtype_of<typename X::value_type>, buffer()));
      for (const Expert& e : *n.experts) visit(e(some));
    });
}

template <class Resolver, class Variables, class X, class Loss>
auto resolve_node(Resolver& to, const Variables& v, const attached_node<X, Loss>& n) {
  const auto x = as_leaf(to.evaluator, resolve(to, v, n.operand));
  const auto loss = as_leaf(to.evaluator, resolve(to, v, n.loss), 1);
  using leaf = std::remove_const_t<decltype(x)>;
  using loss_leaf = std::remove_const_t<decltype(loss)>;
  const auto value = [&](auto& evaluator) {
    const auto same = unrecorded_part(*x.state(), 0, x.state()->extents);
    tensor_list operands;  // that have a gradient
    if constexpr (leaf::requires_grad) operands.push_back(x.state());
    if constexpr (loss_leaf::requires_grad) operands.push_back(loss.state());
    evaluator.remember(same, operands,
                       [&c = evaluator.run_context(), count = operands.size(),
                        weight = evaluator.run_context().loss_weight](const auto& g) {
                         if (!g) return tensor_list(count);
                         tensor_list gradients;
                         if constexpr (leaf::requires_grad) gradients.push_back(g);
                         if constexpr (loss_leaf::requires_grad) {
                           using T = typename loss_leaf::value_type;
                           const T scale = static_cast<T>(c.loss_scale * weight);
                           gradients.push_back(full<T>(extents<>{}, scale, c.where()).state());
                         }
                         return gradients;
                       });
    constexpr bool tracked = leaf::requires_grad || loss_leaf::requires_grad;
    return tensor<typename leaf::value_type, typename leaf::extents_type, tracked>(same);
  };
  if constexpr (!block_divider<typename Resolver::evaluator_type>) return value(to.evaluator);
  else return to.evaluator.composite(x, loss, 0, value, [](auto&, auto) {});
}

}  // namespace detail
}  // namespace runtime
}  // namespace weft
