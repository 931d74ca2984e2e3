// SPDX-License-Identifier: MIT
// Tensor parallelism combined with each precision and way to recompute.
#include "divided_options.hpp"

#include <weft/parallel/tensor_parallel.hpp>

using namespace divided_options;

namespace {
using whole = dividing<false, tp<>>;
using by_positions = dividing<false, tp<activations::by_positions>>;
constexpr mesh_sizes meshes[] = {{.tp = 2}, {.fsdp = 2, .tp = 2}, {.dp = 2, .tp = 4}};
}  // namespace

TEST_CASE("layers: what is recomputed changes nothing") {
  recomputes<whole>(meshes);
  recomputes<by_positions>(meshes);
}
TEST_CASE("layers: products in bf16") {
  mixes_precision<whole>(meshes);
  mixes_precision<by_positions>(meshes);
}
TEST_CASE("layers: products in f16, with a scaled loss") {
  scales_losses<whole>(meshes);
  scales_losses<by_positions>(meshes);
}
