// SPDX-License-Identifier: MIT
// GPT-2 with a mixture of experts in place of the feed-forward layer of each block.
#pragma once

#include <weft/nn/mixture_of_experts.hpp>

#include "gpt2.hpp"

namespace gpt2 {

/// Each token is routed to config::experts_per_token of config::experts feed-forward layers. The auxiliary
/// losses have the factors of the papers that introduced them.
template <index_t C>
struct expert_mlp {
  weft::mixture_of_experts<C, mlp<C>> moe;

  static expert_mlp create(const config& c, double deviation, double residual, const device& where) {
    return {decltype(moe)::create(
        c.width, c.experts, {.per_row = c.experts_per_token, .capacity_factor = c.capacity_factor},
        [&] { return mlp<C>::create(c, deviation, residual, where); }, where)};
  }
  auto operator()(expression auto x) const { return moe.with_losses(std::move(x), 0.01f, 0.001f); }
};

using model_of_experts = model<dyn, dyn, dyn, dyn, expert_mlp<dyn>>;

}  // namespace gpt2
