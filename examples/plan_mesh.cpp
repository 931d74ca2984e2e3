// SPDX-License-Identifier: MIT
// Which mesh to train a GPT on, before there is a cluster: memory, traffic and time of a step for every mesh
// on two machines of eight GPUs each.
#include <cstdio>

#include <weft/parallel/pipeline.hpp>
#include <weft/parallel/tensor_parallel.hpp>
#include <weft/planner/planner.hpp>
#include <weft/weft.hpp>

#include "gpt2.hpp"

using namespace weft;

// The model, with 1.3 billion parameters, and how it is trained.
using plan = policy<precision::bf16, strategy::mesh<pp<>, dp, fsdp<>, tp<>>>;
constexpr gpt2::config sizes{.layers = 24, .heads = 16, .width = 2048, .context = 1024, .vocabulary = 50304};

// The machines: rates in operations and bytes per second, latencies in seconds.
constexpr planner::cluster machines{
    .ranks = 16,
    .ranks_of_node = 8,
    .memory = 24e9,
    .device = {.products = 60e12, .narrow_products = 400e12, .bytes = 2.4e12, .launch = 4e-6, .is_gpu = true},
    .within = {.latency = 5e-6, .bytes = 300e9},
    .between = {.latency = 10e-6, .bytes = 40e9}};

/// A training step of one rank.
void step_of(planner::traced_rank& rank, const planner::candidate& way) {
  auto model = gpt2::model<>::create(sizes, rank.where().deferred());
  adamw optimizer;
  auto run = bind<plan>(model, optimizer, rank.ranks(), way.sizes);
  const tensor<std::int32_t, extents<dyn, dyn>> tokens(shape{2, {way.samples, sizes.context}}, rank.where());
  rank.step([&] {
    run.step(way.micro_batches, [&](index_t) { return model.loss(tokens, tokens, sizes.context); });
  });
}

int main() {
  const auto ways = planner::candidates(machines.ranks, 64, {.pp = 4, .dp = 16, .fsdp = 16, .tp = 4});
  std::printf("%zu ways\n%s", ways.size(), to_string(planner::plan(machines, ways, step_of)).c_str());
}
