// SPDX-License-Identifier: MIT
// A training step in one call against the loop by hand: the same bits, the same calls of the loss.
#include "training.hpp"

using namespace training;

namespace {

/// As `train`, by run.step(m, loss).
outcome train_by_step(communicator& ranks, const parallel_options& o, index_t per_rank, int steps) {
  const device where = one_thread();
  net model = net::create(where);
  initialize(model, 5);
  adamw optimizer{.lr = 1e-2};
  auto run = bind<>(model, optimizer, ranks, o);
  run.seed = 3;
  outcome result;
  const index_t total = per_rank * ranks.size();
  for (int s = 0; s < steps; ++s) {
    index_t called = 0;
    const step_result r = run.step(
        per_rank,
        [&](index_t j) {
          CHECK(j == called++);
          const index_t g = s * total + run.micro_batch(j, per_rank);
          return cross_entropy(model(batch_of(g, where, 0)), batch_of(g, where, 1));
        },
        {.clip = 0.5});
    CHECK(called == per_rank);
    result.losses.push_back(r.loss);
    result.norms.push_back(r.norm);
    result.sent = {r.sent.of(collective::all_reduce), r.sent.of(collective::reduce_scatter),
                   r.sent.of(collective::all_gather)};
  }
  result.parameters = elements_of(run.full());
  return result;
}

}  // namespace

TEST_CASE("step(m, loss) is the loop by hand, under every strategy") {
  for (const int n : {1, 2, 3})
    for (const sharding stage : stages)
      for (const index_t per_rank : {1, 3}) {
        const parallel_options o{.divide = stage};
        std::vector<outcome> by_step(static_cast<std::size_t>(n)), by_hand = by_step;
        run_ranks(n, [&](communicator& ranks) {
          by_hand[static_cast<std::size_t>(ranks.rank())] = train<>(ranks, o, per_rank, 3);
        });
        run_ranks(n, [&](communicator& ranks) {
          by_step[static_cast<std::size_t>(ranks.rank())] = train_by_step(ranks, o, per_rank, 3);
        });
        for (std::size_t r = 0; r < by_step.size(); ++r) {
          INFO("rank " << r << " of " << n << ", stage " << static_cast<int>(stage) << ", " << per_rank
                       << " micro-batches");
          CHECK(by_step[r].losses == by_hand[r].losses);
          CHECK(by_step[r].norms == by_hand[r].norms);
          CHECK(by_step[r].parameters == by_hand[r].parameters);
          CHECK(by_step[r].sent == by_hand[r].sent);
        }
      }
}

TEST_CASE("step(m, loss): what is wrong is said, and nothing has changed") {
  const device where = one_thread();
  net model = net::create(where);
  initialize(model, 5);
  sgd optimizer;
  self_communicator alone;
  auto run = bind<>(model, optimizer, alone, {});
  const auto before = elements_of(run.full());
  index_t called = 0;
  const auto loss = [&](index_t) {
    ++called;
    return cross_entropy(model(batch_of(0, where, 0)), batch_of(0, where, 1));
  };
  CHECK_THROWS_WITH_AS(run.step(0, loss), "weft: step: 0 micro-batches", value_error);
  CHECK_THROWS_AS(run.step(1, loss, {.clip = -1}), value_error);
  CHECK(called == 0);
  CHECK(elements_of(run.full()) == before);
}
