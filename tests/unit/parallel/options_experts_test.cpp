// SPDX-License-Identifier: MIT
// Expert parallelism combined with each precision and way to recompute.
#include "divided_options.hpp"

#include <weft/parallel/expert_parallel.hpp>

using namespace divided_options;

namespace {
using by_expert = dividing<true, ep>;
constexpr mesh_sizes meshes[] = {{.ep = 2}, {.ep = 4}, {.fsdp = 2, .ep = 2}, {.dp = 2, .ep = 2}};
}  // namespace

TEST_CASE("experts: what is recomputed changes nothing") { recomputes<by_expert>(meshes); }
TEST_CASE("experts: products in bf16") { mixes_precision<by_expert>(meshes); }
TEST_CASE("experts: products in f16, with a scaled loss") { scales_losses<by_expert>(meshes); }
