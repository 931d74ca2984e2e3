// SPDX-License-Identifier: MIT
// Positions divided among ranks beside each precision and way to recompute.
#include "divided_options.hpp"

using namespace divided_options;

namespace {
using by_ring = dividing<false, cp<ring>>;
using by_ulysses = dividing<false, cp<ulysses>>;
constexpr mesh_sizes meshes[] = {{.cp = 2}, {.cp = 3}, {.fsdp = 2, .cp = 2}, {.dp = 2, .cp = 2}};
}  // namespace

TEST_CASE("positions: what is recomputed changes nothing") {
  recomputes<by_ring>(meshes);
  recomputes<by_ulysses>(meshes);
}
TEST_CASE("positions: products in bf16") {
  mixes_precision<by_ring>(meshes);
  mixes_precision<by_ulysses>(meshes);
}
TEST_CASE("positions: products in f16, with a scaled loss") {
  scales_losses<by_ring>(meshes);
  scales_losses<by_ulysses>(meshes);
}
