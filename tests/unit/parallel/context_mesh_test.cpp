// SPDX-License-Identifier: MIT
// Positions divided among ranks beside layers and stages of a pipeline: losses, norms and parameters of one
// rank.
#include <doctest/doctest.h>

#include <weft/parallel/context_pipeline.hpp>

#include "divided_positions.hpp"

using namespace divided_positions;

TEST_CASE("positions and layers divided, in either order of axes") {
  outcome one;
  run_ranks(1, [&](communicator& ranks) { one = trained<policy<strategy::mesh<dp>>>(ranks, {}); });
  trains_as_one_rank<policy<strategy::mesh<cp<>, tp<>>>>(one, {.cp = 2, .tp = 2});
  trains_as_one_rank<policy<strategy::mesh<tp<>, fsdp<3>, cp<>>>>(one, {.fsdp = 2, .cp = 2, .tp = 2});
}

TEST_CASE("ranks that divide positions take no steps alone, and divide the ranks of a stage") {
  run_ranks(3, [](communicator& ranks) {
    auto model = gpt2::model<>::create(small);
    initialize(model, 3);
    sgd optimizer;
    using plan = policy<strategy::mesh<pp<>, dp, cp<>>>;
    CHECK_THROWS_WITH_AS(
        (bind<plan>(model, optimizer, ranks, parallel_options{.context_ranks = 3, .local_steps = 2})),
        doctest::Contains("local_steps"), usage_error);
    CHECK_THROWS_WITH_AS((bind<plan>(model, optimizer, ranks, parallel_options{.context_ranks = 2})),
                         "weft: pipeline: 2 ranks that divide positions for 3 ranks of each stage",
                         usage_error);
  });
}

TEST_CASE("positions divided on the stages of a pipeline") {
  outcome one;
  run_ranks(1, [&](communicator& ranks) { one = trained<policy<strategy::mesh<dp>>>(ranks, {}); });
  trains_as_one_rank<policy<strategy::mesh<pp<>, dp, cp<>>>>(one, {.pp = 2, .cp = 2});
  trains_as_one_rank<policy<strategy::mesh<pp<>, dp, cp<>>>>(one, {.pp = 2, .dp = 2, .cp = 2});
}
