// SPDX-License-Identifier: MIT
// Mean and variance of each channel of a batch, and the running statistics for evaluation: what batch norm
// reads.
//
// A boundary, like a recurrence: the operand is evaluated, its statistics are computed by a separate program,
// and then the running statistics are updated, once however often the node occurs in a statement.
#pragma once

#include <weft/op/all.hpp>
#include <weft/run/boundary.hpp>
#include <weft/run/update.hpp>

namespace weft {

/// The statistics of all batches so far, and the number of batches; `momentum` is the weight of the next
/// batch.
template <index_t C>
struct running_statistics {
  tensor<float, extents<C>> mean, variance;
  tensor<std::int64_t, extents<>> batches;
  double momentum;
};

/// Mean and biased variance of the channels of `operand` [batch, channels, ...], f32, as [2, channels]: in
/// training those of the batch, which is then counted in `running`; otherwise those in `running`.
template <expression X, index_t C>
struct batch_statistics_node : expression_base {
  using value_type = float;
  static constexpr shape static_shape{2, {2, X::static_shape[1] < 0 ? C : X::static_shape[1]}};
  static constexpr long node_count = X::node_count;

  X operand;
  running_statistics<C> running;
  bool training;
  index_t call = detail::next_call();
  constexpr auto operator[](index_t i) const { return select<0>(*this, i); }
};

namespace detail {
template <class X, index_t C>
struct parts<batch_statistics_node<X, C>> {
  using type = expression_list<X>;
};
template <class X, index_t C>
inline constexpr unsigned own_part<batch_statistics_node<X, C>> = boundary_part;
}  // namespace detail

namespace runtime {
namespace detail {

template <class Variable, class X, index_t C>
inline constexpr bool reads_after_boundary<Variable, batch_statistics_node<X, C>> =
    reads_after_boundary<Variable, X>;

/// A leaf like `Leaf`, with the extents of the node `Node`.
template <class Leaf, class Node>
struct leaf_of_node;
template <class T, class Extents, bool Tracked, class Node>
struct leaf_of_node<tensor<T, Extents, Tracked>, Node> {
  using type = tensor<T, typename extents_from<Node::static_shape>::type, Tracked>;
};

/// Throws unless x [batch, channels, ...] has as many channels as `running` and, in training, more than one
/// element per channel; returns the number of elements per channel.
[[gnu::cold]] inline index_t checked_channels(const shape& x, const shape& running, double momentum,
                                              bool training) {
  if (x[1] != running[0])
    refuse<shape_error>({"weft: batch_norm: the operand ", x, " has ", x[1],
                         " channels, but the running statistics have ", running[0]});
  if (!(momentum >= 0 && momentum <= 1))
    refuse<value_error>({"weft: batch_norm: the momentum is ", momentum, ", not in [0, 1]"});
  const index_t elements = x.size() / std::max<index_t>(x[1], 1);
  if (training && x[1] > 0 && elements < 2)
    refuse<value_error>({"weft: batch_norm: a batch ", x,
                         " has fewer than 2 elements for each channel, but training needs their variance"});
  return elements;
}

/// Counts a batch with `elements` elements per channel in `running`, with the unbiased variance, as PyTorch.
template <index_t C, class Moments>
void count_batch(context& c, const running_statistics<C>& running, const Moments& batch, index_t elements) {
  const auto weight = static_cast<float>(running.momentum), rest = 1 - weight;
  const auto n = static_cast<float>(elements);
  update(
      c, {running.mean.state(), running.variance.state(), running.batches.state()},
      bundled(running.mean * rest + select<0, 0>(batch) * weight,
              running.variance * rest + select<0, 1>(batch) * (weight * (n / (n - 1))), running.batches + 1));
}

template <class Resolver, class Variables, class X, index_t C>
auto resolve_node(Resolver& to, const Variables& v, const batch_statistics_node<X, C>& n) {
  const auto x = as_leaf(to.evaluator, resolve(to, v, n.operand));
  const index_t elements =
      checked_channels(x.extents(), n.running.mean.extents(), n.running.momentum, n.training);
  const auto value = [&](auto& evaluator) {
    using result = typename leaf_of_node<decltype(evaluator.eval_program(apply<op::channel_moments>(x))),
                                         batch_statistics_node<X, C>>::type;
    if (!n.training)
      return result(evaluator.eval_program(stack<0>(n.running.mean, n.running.variance)).state());
    const result batch(evaluator.eval_program(apply<op::channel_moments>(x)).state());
    count_batch(evaluator.run_context(), n.running, batch, elements);
    return batch;
  };
  if constexpr (!block_divider<typename Resolver::evaluator_type>) return value(to.evaluator);
  else {
    const auto like =
        make_recycled<tensor_state>(x.state()->where, shape{2, {2, x.extents()[1]}}, dtype::f32, buffer());
    const tensor<float, extents_of<batch_statistics_node<X, C>>> result(like);
    return to.evaluator.composite(result, x, n.training ? 2 : 1, value, [&](auto&, auto visit) {
      visit(apply<op::channel_moments>(x));
      visit(stack<0>(n.running.mean, n.running.variance));  // so that this stage holds them
      visit(n.running.batches + 1);
    });
  }
}

}  // namespace detail
}  // namespace runtime
}  // namespace weft
