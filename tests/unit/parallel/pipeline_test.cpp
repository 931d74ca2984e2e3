// SPDX-License-Identifier: MIT
// Pipelines against one rank: the same losses, norms and parameters under every schedule and sharding.
#include "pipelines.hpp"

using namespace pipelines;

namespace {

/// Blocks before, between and after which programs stand; the table is used twice.
struct deep_net {
  embedding_table<> table;
  repeat<block> first;
  linear<> between;
  repeat<block> second;
  layer_normalization<> last;

  static deep_net create(const device& where, int blocks) {
    const auto make = [&] {
      return block{layer_normalization<>::create(6, where), linear<>::create(6, 7, where),
                   linear<>::create(7, 6, where)};
    };
    deep_net n{embedding_table<>::create(11, 6, where),
               {},
               linear<>::create(6, 6, where),
               {},
               layer_normalization<>::create(6, where)};
    for (int i = 0; i < blocks; ++i) (i % 3 == 2 ? n.first : n.second).blocks.push_back(make());
    return n;
  }
  auto operator()(expression auto tokens) const {
    return matmul(last(second(between(first(table(tokens))))), transpose(table.weight));
  }
};

deep_net make(const device& where) {
  deep_net model = deep_net::create(where, 10);
  initialize(model, 5);
  return model;
}
const auto loss = [](const deep_net& model, const device& where, index_t number) {
  return cross_entropy(model(batch_of(number, where, 0)), batch_of(number, where, 1));
};

template <int Stage>
using plan = policy<strategy::mesh<pp<>, dp, fsdp<Stage>>>;
/// The same with programs for divided backward steps.
template <int Stage>
using plan_in_parts = policy<strategy::mesh<pp<pipeline::zb_h1>, dp, fsdp<Stage>>>;

/// Three steps of `m` micro-batches on each data rank, against one rank without a pipeline.
template <class Plan>
void compare_with_one(const mesh_sizes& sizes, const char* schedule, index_t m, bool deterministic) {
  compare_plan<Plan, precision::f32>(
      {.sizes = sizes, .schedule = schedule, .per_rank = {m, m, m}, .deterministic = deterministic}, make,
      loss);
}

const char* const schedules[] = {"gpipe", "1f1b", "interleaved:2", "interleaved:3", "breadth-first:2"};

}  // namespace

TEST_CASE("pipelines train as one rank does, under every schedule") {
  for (const int stages : {2, 3})
    for (const char* schedule : schedules)
      for (const bool deterministic : {true, false})
        for (const index_t m : {stages, 2 * stages})
          compare_with_one<plan<0>>({.pp = stages}, schedule, m, deterministic);
  for (const char* schedule : {"gpipe", "1f1b"}) compare_with_one<plan<0>>({.pp = 4}, schedule, 5, false);
  compare_with_one<plan<0>>({.pp = 3}, "layer-wise", 1, false);
}

TEST_CASE("divided backward steps give the same gradients") {
  for (const bool deterministic : {true, false}) {
    for (const int stages : {1, 2, 3, 4})
      for (const index_t m : {stages, 2 * stages, 7})
        for (const char* schedule : {"zb-h1", "zb-v", "dual-pipe-v", "1f1b"})
          if (m >= 2 * stages || std::string_view(schedule) != "dual-pipe-v")
            compare_with_one<plan_in_parts<0>>({.pp = stages}, schedule, m, deterministic);
    compare_with_one<plan_in_parts<0>>({.pp = 2, .dp = 2}, "zb-h1", 4, deterministic);
    compare_with_one<plan_in_parts<3>>({.pp = 2, .fsdp = 2}, "zb-v", 4, deterministic);
  }
}

TEST_CASE("all ranks divide the blocks alike, though the cost of their micro-batches differs") {
  std::vector<parallel::block_range> first_chunks(4);
  run_ranks(4, [&](communicator& ranks) {
    const device where = one_thread();
    // The cost of a head of 300 words relative to a block depends on the number of rows.
    deep_net model = deep_net::create(where, 8);
    model.table = embedding_table<>::create(300, 6, where);
    adamw optimizer;
    auto run = bind<plan<0>>(model, optimizer, ranks, {.pp = 2, .dp = 2});
    const index_t rows = ranks.rank() % 2 == 0 ? 1 : 400;
    tokens t(shape{1, {rows}}, where);
    t.copy_from(std::vector<std::int32_t>(static_cast<std::size_t>(rows), 3));
    run.prepare(cross_entropy(model(t), t), 2);
    first_chunks[static_cast<std::size_t>(ranks.rank())] = run.blocks_of(0);
  });
  for (const parallel::block_range& r : first_chunks) CHECK(r.last == first_chunks[0].last);
}

TEST_CASE("pipelines beside data parallelism and every stage of ZeRO") {
  for (const bool deterministic : {true, false})
    for (const char* schedule : {"1f1b", "interleaved:2"}) {
      compare_with_one<plan<0>>({.pp = 2, .dp = 2}, schedule, 4, deterministic);
      compare_with_one<plan<1>>({.pp = 2, .fsdp = 2}, schedule, 4, deterministic);
      compare_with_one<plan<2>>({.pp = 2, .fsdp = 2}, schedule, 4, deterministic);
      compare_with_one<plan<3>>({.pp = 2, .fsdp = 2}, schedule, 4, deterministic);
    }
  compare_with_one<plan<3>>({.pp = 2, .dp = 2, .fsdp = 2}, "1f1b", 4, true);
}
