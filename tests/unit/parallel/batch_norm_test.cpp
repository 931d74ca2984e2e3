// SPDX-License-Identifier: MIT
// Batch norm on several ranks. In a pipeline, inside and outside its blocks, it is bitwise identical to one
// rank, running statistics included. Replicas use the statistics of their own batches, and have those of rank
// 0 after a step.
#include <weft/nn/batch_norm.hpp>

#include "pipelines.hpp"

using namespace pipelines;

namespace {

struct normed_block {
  linear<6, 6> map;
  batch_normalization<6> norm;
  auto operator()(expression auto x) const {
    auto y = shared(x);
    return y + relu(norm(map(y)));
  }
};
struct normed_net {
  embedding_table<> table;
  batch_normalization<6> first;
  repeat<normed_block> h;
  batch_normalization<> last;
  linear<6, 11> head;

  static normed_net create(const device& where) {
    normed_net n{
        embedding_table<>::create(11, 6, where), {}, {}, batch_normalization<>::create(6, where), {}};
    n.h.blocks.resize(3);
    to(n, where);
    initialize(n, 5);
    return n;
  }
  auto operator()(expression auto tokens) const { return head(last(h(first(table(tokens))))); }
};

const auto loss = [](const auto& model, const device& where, index_t number) {
  const index_t rows = 3 + number % 4;
  return cross_entropy(model(tokens_of(number, where, 0, rows)), tokens_of(number, where, 1, rows));
};

}  // namespace

TEST_CASE("batch norm on stages: the same bits as on one rank, also where blocks are computed again") {
  for (const int recompute : {0, 5})
    compare<precision::f32>(
        {.sizes = {.pp = 2}, .schedule = "1f1b", .per_rank = {2, 4}, .recompute = recompute},
        normed_net::create, loss);
  compare<precision::bf16>({.sizes = {.pp = 3}, .schedule = "gpipe", .per_rank = {3, 1}}, normed_net::create,
                           loss);
}

TEST_CASE("batch norm on replicas: statistics of their own batches, and those of rank 0 after a step") {
  for (const bool shared_after : {true, false})
    run_ranks(2, [&](communicator& ranks) {
      const device where = one_thread();
      normed_net model = normed_net::create(where), alone = normed_net::create(where);
      sgd optimizer{.lr = 0.01};
      auto run =
          bind<policy<strategy::data_parallel>>(model, optimizer, ranks, {.broadcast_buffers = shared_after});
      run.step(1, [&](index_t) { return loss(model, where, ranks.rank()); });
      context c(where);
      eval(loss(alone, where, shared_after ? 0 : ranks.rank()), c);
      CHECK(model.first.running_mean.to_vector() == alone.first.running_mean.to_vector());
      CHECK(model.last.running_var.to_vector() == alone.last.running_var.to_vector());
      CHECK(model.last.num_batches_tracked.item() == 1);
    });
}
