// SPDX-License-Identifier: MIT
// A GPT-2 with all special cases, on ranks that shard layers, positions or experts, combined with each
// precision and way to recompute: losses, norms, parameters and loss scale equal those of one rank. Its head
// is tied to the embedding; blocks have a buffer, which no optimizer changes, and an unused parameter; each
// rank accumulates micro-batches, and gradients are clipped.
#pragma once

#include <type_traits>

#include "../../../examples/gpt2_experts.hpp"
#include "divided_positions.hpp"

namespace divided_options {

using namespace divided_positions;

/// The feed-forward layer `Feed` of a block, with a buffer and an unused parameter.
template <class Feed>
struct rich_feed {
  Feed mlp;
  tensor<float, extents<dyn>> gain;
  linear<> unused;

  static rich_feed create(const gpt2::config& c, double deviation, double residual, const device& where) {
    return {Feed::create(c, deviation, residual, where), full<float>(extents<dyn>{c.width}, 0.75f, where),
            linear<>::create(3, 2, where)};
  }
  auto operator()(expression auto x) const { return mlp(x) * gain; }
};

template <bool Experts>
using rich_net = gpt2::model<dyn, dyn, dyn, dyn,
                             rich_feed<std::conditional_t<Experts, gpt2::expert_mlp<dyn>, gpt2::mlp<dyn>>>>;
inline constexpr gpt2::config rich = [] {
  gpt2::config c = small;
  c.experts = 3;
  c.experts_per_token = 2;
  return c;
}();

/// The sharding, as one type: Axes are the axes besides dp and fsdp.
template <bool Experts, class... Axes>
struct dividing {
  template <class... Choices>
  using alone = policy<Choices..., strategy::mesh<dp>>;
  template <class... Choices>
  using divided = policy<Choices..., strategy::mesh<dp, fsdp<3>, Axes...>>;
  using net = rich_net<Experts>;
};

template <class Plan, class Net>
outcome trained_alone(const options& o) {
  outcome one;
  run_ranks(1, [&](communicator& ranks) { one = trained<Plan, Net>(ranks, {}, rich, 4, o); });
  return one;
}

/// Norms and activations are recomputed; whole programs, too, if `recompute` is set.
template <class Dividing, class Meshes>
void recomputes(const Meshes& meshes) {
  const outcome one =
      trained_alone<typename Dividing::template alone<>, typename Dividing::net>({.recompute = 0});
  for (const mesh_sizes& n : meshes)
    for (const int blocks : {0, 1, context::every_program})
      trains_as_one_rank<typename Dividing::template divided<recompute::selective>, typename Dividing::net>(
          one, n, rich, 4, {.recompute = blocks});
}

/// Matrix products in half precision: a sharded product is rounded once more on each rank.
template <class Dividing, class Meshes>
void mixes_precision(const Meshes& meshes) {
  using net = typename Dividing::net;
  const options o{.recompute = 1};
  const outcome exact = trained_alone<typename Dividing::template alone<>, net>({});
  const outcome one = trained_alone<typename Dividing::template alone<precision::bf16>, net>(o);
  CHECK(largest_difference(one.losses, exact.losses) > 1e-6);
  for (const mesh_sizes& n : meshes)
    trains_as_one_rank<typename Dividing::template divided<precision::bf16>, net>(one, n, rich, 4, o, 1e-4);
}

/// With an initial scale of 2^24, all ranks skip the first steps, until the scale fits.
template <class Dividing, class Meshes>
void scales_losses(const Meshes& meshes, double scale = 0x1p24) {
  using net = typename Dividing::net;
  const options o{.steps = 8, .scale = scale};
  const outcome one = trained_alone<typename Dividing::template alone<precision::f16>, net>(o);
  CHECK((one.norms.front() == -1) == (scale > 65536));
  CHECK(one.norms.back() > 0);
  for (const mesh_sizes& n : meshes)
    trains_as_one_rank<typename Dividing::template divided<precision::f16>, net>(one, n, rich, 4, o, 1e-5);
}

}  // namespace divided_options
