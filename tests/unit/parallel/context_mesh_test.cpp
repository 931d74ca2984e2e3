// SPDX-License-Identifier: MIT
// Context parallelism combined with tensor and pipeline parallelism: losses, norms and parameters equal those
// of one rank.
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
    CHECK_THROWS_WITH_AS(
        (bind<plan>(model, optimizer, ranks, parallel_options{.context_ranks = 2})),
        "weft: bind: context_ranks is 2, which does not divide 3 ranks with the same parameters",
        usage_error);
  });
}

TEST_CASE("positions divided on the stages of a pipeline") {
  outcome one;
  run_ranks(1, [&](communicator& ranks) { one = trained<policy<strategy::mesh<dp>>>(ranks, {}); });
  trains_as_one_rank<policy<strategy::mesh<pp<>, dp, cp<>>>>(one, {.pp = 2, .cp = 2});
  trains_as_one_rank<policy<strategy::mesh<pp<>, dp, cp<>>>>(one, {.pp = 2, .dp = 2, .cp = 2});
}

TEST_CASE(
    "ranks that divide positions have micro-batches of one number, and draw different numbers in them") {
  for (const mesh_sizes& n : {mesh_sizes{.pp = 2, .cp = 2}, {.pp = 2, .dp = 2, .cp = 2}})
    run_ranks(static_cast<int>(n.ranks()), [&](communicator& ranks) {
      auto model = gpt2::model<>::create(small);
      sgd optimizer;
      auto run = bind<policy<strategy::mesh<pp<>, dp, cp<>>>>(model, optimizer, ranks, n);
      const int at = n.coordinate(ranks.rank(), mesh_axis::dp);
      for (index_t j = 0; j < 3; ++j) CHECK(run.micro_batch(j, 3) == 3 * at + j);
      const auto differ = [&] {
        std::vector<double> drawn(static_cast<std::size_t>(n.cp));
        drawn[static_cast<std::size_t>(n.coordinate(ranks.rank(), mesh_axis::cp))] =
            static_cast<double>(run.next_random() >> 20);
        ranks.all_reduce(drawn, reduction::sum).wait();
        return drawn[0] != drawn[1];
      };
      run.begin_micro_batch(5, 1);
      CHECK(differ());
      run.begin_step(5);
      CHECK(differ());
    });
}

namespace {
/// The loss and norm of a step of three batches: `m` micro-batches per data rank, of which the second data
/// rank has only one, and joins before the step or, with `in_loss`, during it.
template <class Plan>
std::pair<double, double> joined_step(communicator& ranks, const mesh_sizes& n, index_t m, bool in_loss) {
  auto model = gpt2::model<>::create(small);
  initialize(model, 3);
  sgd optimizer{.lr = 0.1};
  auto run = bind<Plan>(model, optimizer, ranks, n);
  const int at = n.coordinate(ranks.rank(), mesh_axis::dp);
  const index_t first = at == 0 ? 0 : 2, own = n.dp == 1 ? 3 : 2 - at;
  const auto loss = [&](index_t j) {
    const auto has_batch = [&](index_t b) { return b < own; };
    if (in_loss) run.join(has_batch(j));
    const index_t number = first + std::min(j, own - 1);
    const tokens x = batch(number, 0), y = batch(number, 1);
    if constexpr (requires { run.part_of_context(length); }) {
      const context_part part = run.part_of_context(length);
      return model.loss(part.of(x), part.of(y), part.positions());
    } else {
      return model.loss(x, y, length);
    }
  };
  if constexpr (requires { run.prepare(loss(0), m); })
    if (!in_loss) run.prepare(loss(0), m);
  for (index_t j = 0; j < m && !in_loss && n.dp > 1; ++j) run.join(j < own);
  const step_result r = run.step(m, loss);
  return {r.loss, static_cast<double>(r.norm)};
}
}  // namespace

TEST_CASE("join: a data rank with fewer batches, where others divide positions and stages") {
  std::pair<double, double> one;
  run_ranks(1,
            [&](communicator& ranks) { one = joined_step<policy<strategy::mesh<dp>>>(ranks, {}, 3, false); });
  const auto check = [&]<class Plan>(Plan, const mesh_sizes& n, bool in_loss) {
    INFO(to_string(n) << (in_loss ? ", in the loss" : ""));
    run_ranks(static_cast<int>(n.ranks()), [&](communicator& ranks) {
      const auto [loss, norm] = joined_step<Plan>(ranks, n, 2, in_loss);
      CHECK(loss == doctest::Approx(one.first));
      CHECK(norm == doctest::Approx(one.second).epsilon(1e-4));
    });
  };
  for (const bool in_loss : {false, true}) {
    check(policy<strategy::mesh<dp, cp<>>>(), {.dp = 2, .cp = 2}, in_loss);
    check(policy<strategy::mesh<pp<>, dp, cp<>>>(), {.pp = 2, .dp = 2}, in_loss);
    check(policy<strategy::mesh<pp<>, dp, cp<>>>(), {.pp = 2, .dp = 2, .cp = 2}, in_loss);
  }
}
