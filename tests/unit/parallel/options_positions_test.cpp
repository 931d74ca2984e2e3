// SPDX-License-Identifier: MIT
// Context parallelism combined with each precision and way to recompute.
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
// A rank's loss is the mean over its own positions, so that f16 needs a smaller scale.
TEST_CASE("positions: products in f16, with a scaled loss") {
  scales_losses<by_ring>(meshes, 65536);
  scales_losses<by_ulysses>(meshes, 65536);
}
TEST_CASE("positions: all ranks leave out the same steps") {
  using plan = by_ring::divided<precision::f16>;
  outcome all[3];
  run_ranks(3, [&](communicator& ranks) {
    all[ranks.rank()] =
        trained<plan, rich_net<false>>(ranks, {.cp = 3}, rich, 4, {.steps = 12, .scale = 0x1p26});
  });
  CHECK(all[0].norms.front() == -1);
  CHECK(all[0].norms.back() > 0);
  for (const outcome& o : all) {
    CHECK(o.norms == all[0].norms);
    CHECK(o.scale == all[0].scale);
    CHECK(o.parameters == all[0].parameters);
  }
}
