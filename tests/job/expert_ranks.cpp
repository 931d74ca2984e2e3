// SPDX-License-Identifier: MIT
// Trains a small mixture of experts with expert parallelism, with large and empty messages, and prints losses
// and norms bitwise. transports.sh compares the output between transports.
//
//   expert_ranks                    WEFT_RANKS=4 for threads; under launch; under mpirun
#include <cstdio>

#include <weft/comm/run_world.hpp>
#include <weft/parallel/context_pipeline.hpp>
#include <weft/parallel/expert_parallel.hpp>
#include <weft/weft.hpp>

#include "../../examples/gpt2_experts.hpp"

using namespace weft;

namespace {

constexpr index_t width = 1024;

struct net {
  linear<3, width> in;
  mixture_of_experts<width, feed_forward<width, 8>> moe;
  linear<width, 1> out;
  auto operator()(expression auto x) const {
    auto h = shared(in(x));
    return out(h + dropout(moe(h), 0.1f));
  }
};

void train(communicator& ranks, const mesh_sizes& sizes, double capacity_factor) {
  const device where(std::make_shared<cpu::cpu_backend>(1));
  net model{{},
            decltype(net::moe)::create(width, 3, {.per_row = 2, .capacity_factor = capacity_factor},
                                       [] { return feed_forward<width, 8>(); }),
            {}};
  to(model, where);
  initialize(model, 1);
  adamw optimizer{.lr = 1e-3};
  auto run = bind<policy<strategy::mesh<dp, ep>>>(model, optimizer, ranks, sizes);
  for (int step = 0; step < 3; ++step) {
    const step_result r = run.step(
        2,
        [&](index_t j) {
          const auto number = static_cast<std::uint64_t>(2 * step * ranks.size() + run.micro_batch(j, 2));
          const auto rows = static_cast<index_t>(number % 3 * 75 + 1);
          const auto x = randn<float>(extents<dyn, 3>{rows, 3}, {.seed = number}, where);
          return mean(square(model(x) - sum(x, dims<1>, keepdim)));
        },
        {.clip = 1});
    if (ranks.rank() == 0)
      std::printf("%s, capacity %g, step %d: %a %a, %lld bytes\n", to_string(sizes).c_str(), capacity_factor,
                  step, r.loss, r.norm,
                  static_cast<long long>(r.sent_by_axis[static_cast<std::size_t>(mesh_axis::ep)]));
  }
}

/// A GPT with expert parallelism, whose experts drop tokens, combined with stages, positions and layers.
void train_gpt(communicator& ranks, const mesh_sizes& sizes) {
  const device where(std::make_shared<cpu::cpu_backend>(1));
  auto model = gpt2::model_of_experts::create({.layers = 2,
                                               .heads = 4,
                                               .width = 16,
                                               .context = 13,
                                               .vocabulary = 11,
                                               .experts = 3,
                                               .experts_per_token = 2,
                                               .capacity_factor = 0.75},
                                              where);
  initialize(model, 1);
  adamw optimizer{.lr = 1e-3};
  using plan = policy<strategy::mesh<pp<>, dp, fsdp<3>, cp<>, ep, tp<>>>;
  auto run = bind<plan>(model, optimizer, ranks, sizes);
  const context_part own = run.part_of_context(11);
  const auto along = [&](mesh_axis a) { return sizes.coordinate(ranks.rank(), a); };
  const index_t data_ranks = sizes.fsdp * sizes.ep;
  const index_t data_rank = along(mesh_axis::fsdp) * sizes.ep + along(mesh_axis::ep);
  for (int step = 0; step < 3; ++step) {
    const step_result r = run.step(
        2,
        [&](index_t j) {
          const index_t number = 2 * (step * data_ranks + data_rank) + j;
          const auto tokens = [&](index_t shift) {
            return generate<std::int32_t>(
                extents<dyn, dyn>{2, 11},
                [=](index_t i) {
                  return static_cast<std::int32_t>((number * 5 + (i + shift) * (i + shift) * 3) % 11);
                },
                where);
          };
          return model.loss(own.of(tokens(0)), own.of(tokens(1)), own.positions());
        },
        {.clip = 1});
    if (ranks.rank() > 0) continue;
    std::printf("%s, step %d: %a %a, bytes", to_string(sizes).c_str(), step, r.loss, r.norm);
    for (const std::int64_t bytes : r.sent_by_axis) std::printf(" %lld", static_cast<long long>(bytes));
    std::puts("");
  }
}

}  // namespace

int main(int argc, char** argv) {
  return run_world(argc, argv, [](communicator& ranks) {
    const int n = ranks.size();
    for (const double capacity_factor : {0.0, 1.0}) {
      train(ranks, {.ep = n}, capacity_factor);  // 3 experts: one of four ranks has none
      train(ranks, {.dp = n / 2, .ep = 2}, capacity_factor);
    }
    train_gpt(ranks, {.fsdp = n / 2, .ep = 2});
    if (n == 4)
      for (const mesh_sizes& sizes : {mesh_sizes{.pp = 2, .ep = 2}, {.cp = 2, .ep = 2}, {.ep = 2, .tp = 2}})
        train_gpt(ranks, sizes);
  });
}
