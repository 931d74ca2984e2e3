// SPDX-License-Identifier: MIT
// Mixture of experts (Shazeer et al., 2017): a router chooses for each token a few of many modules.
//
//   auto make = [] { return feed_forward<64>::create(64, 256); };
//   auto moe = mixture_of_experts<64>::create(64, 8, {.per_row = 2}, make);
//   auto loss = cross_entropy(head(h + moe(h)), labels) + 0.01f * moe.balance_loss(h);
//
// Only the experts that are chosen are computed, each over its own tokens. docs/strategies.md explains how
// ranks divide the experts (parallel/expert_parallel.hpp).
#pragma once

#include <vector>

#include <weft/nn/layers.hpp>
#include <weft/nn/transformer.hpp>
#include <weft/run/experts.hpp>

namespace weft {

/// A linear router and its experts, modules [n, C] -> [n, C] of any kind. A token's experts are weighted by
/// their probabilities, which are divided by their sum if `Renormalise`, as in Mixtral but not in Switch. A
/// token that all its experts drop gives 0. Experts must not be moved or destroyed before the expression is
/// evaluated. Cannot be inside `grad`.
template <index_t C = dyn, class Expert = feed_forward<C>, bool Renormalise = true>
struct mixture_of_experts {
  linear_without_bias<C> router;
  std::vector<Expert> experts;
  expert_choice choice;

  /// `count` experts, each made by a call of `make`. Throws value_error unless 1 <= choice.per_row <= count.
  template <class F>
  static mixture_of_experts create(index_t features, index_t count, const expert_choice& choice, F make,
                                   const device& where = parameter_device()) {
    if (choice.per_row < 1 || choice.per_row > count)
      refuse<value_error>({"weft: mixture_of_experts: cannot choose ", choice.per_row, " of ", count,
                           " experts for each token"});
    if (!(choice.capacity_factor >= 0))
      refuse<value_error>(
          {"weft: mixture_of_experts: the capacity factor must be 0 or more, not ", choice.capacity_factor});
    mixture_of_experts m{decltype(router)::create(features, count, where), {}, choice};
    for (index_t e = 0; e < count; ++e) m.experts.push_back(make());
    return m;
  }

  /// [..., C] -> [..., C]. Costs the router, `per_row` experts for each token, and the sorting of tokens by
  /// expert, for which it waits for the router.
  auto operator()(expression auto x) const {
    return let(std::move(x), [this](auto v) {
      auto probabilities = softmax(router(v));
      return experts_node<Renormalise, Expert, decltype(v), decltype(probabilities)>{
          {}, v, std::move(probabilities), &experts, choice};
    });
  }

  /// The auxiliary loss that keeps experts equally used (Fedus et al., "Switch Transformers", 2021): the
  /// number of experts times the sum over experts of the fraction of choices and the mean probability; 1 if
  /// all are equal. Add it to the loss with a factor, for example 0.01. A scalar; differentiable through the
  /// probabilities. Choices are counted over whole sequences, also if ranks divide their positions.
  auto balance_loss(expression auto x) const {
    const index_t count = static_cast<index_t>(experts.size());
    return let(softmax(router(std::move(x))), [count, k = choice.per_row](auto p) {
      auto chosen = reshape<dyn>(topk<-1>(p, k).indices);
      return let(std::move(chosen), [count, p](auto e) {
        using T = typename decltype(p)::value_type;
        auto times = sum_over_positions(runtime::detail::added_rows(e, cast<T>(e == e), count));
        auto mean_of = mean(flatten<0, decltype(p)::static_shape.order - 2>(p), dims<0>);
        return let(std::move(times), [count, m = std::move(mean_of)](auto n) {
          return sum(n * m) * static_cast<float>(count) / sum(n);
        });
      });
    });
  }

  /// The same as operator(); the backward pass adds the gradients of both auxiliary losses with these
  /// factors. For blocks in a `repeat`, whose auxiliary losses cannot be added to the model's loss. See
  /// with_loss.
  auto with_losses(expression auto x, float balance_factor, float z_factor) const {
    return let(std::move(x), [this, balance_factor, z_factor](auto v) {
      return with_loss((*this)(v), balance_factor * balance_loss(v) + z_factor * z_loss(v));
    });
  }

  /// The auxiliary loss that keeps logits small (Zoph et al., "ST-MoE", 2022): the mean over tokens of the
  /// square of the logsumexp of the router's logits. Add it to the loss with a factor, for example 0.001. A
  /// scalar.
  auto z_loss(expression auto x) const { return mean(square(logsumexp(router(std::move(x)), dims<-1>))); }
};

}  // namespace weft
