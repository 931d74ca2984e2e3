// SPDX-License-Identifier: MIT
// Pipelines against one rank: the same losses, norms and parameters under every schedule and sharding.
#include <weft/parallel/pipeline.hpp>
#include <weft/parallel/schedule/named.hpp>

#include "training.hpp"

using namespace training;

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

struct setting {
  mesh_sizes sizes;
  std::string schedule = "1f1b";
  index_t per_rank = 4;
  bool deterministic = false;
  int steps = 3;
  std::vector<index_t> blocks{};
  int model_blocks = 10;
  bool recompute = false;
};

std::string to_string(const setting& s) {
  return to_string(s.sizes) + ", " + s.schedule + ", " + std::to_string(s.per_rank) + " micro-batches" +
         (s.deterministic ? ", deterministic" : "");
}

template <class Plan>
outcome train_stage(communicator& ranks, const setting& s) {
  const device where = one_thread();
  deep_net model = deep_net::create(where, s.model_blocks);
  initialize(model, 5);
  adamw optimizer{.lr = 1e-2};
  parallel_options o = Plan::strategy_type::options(check_mesh(s.sizes, ranks.size()));
  o.deterministic = s.deterministic;
  auto run = bind<Plan>(
      model, optimizer, ranks, o,
      {.schedule = [&](int stages, int m) { return pipeline::schedule_named(s.schedule, stages, m); },
       .blocks = s.blocks});
  run.seed = 3;
  run.recompute_programs = s.recompute ? context::every_program : 0;
  outcome result;
  const index_t total = s.per_rank * s.sizes.dp * s.sizes.fsdp;
  run.prepare(cross_entropy(model(batch_of(0, where, 0)), batch_of(0, where, 1)), s.per_rank);
  for (int step = 0; step < s.steps; ++step) {
    index_t called = 0;
    const step_result r =
        run.step(s.per_rank,
                 [&](index_t j) {
                   CHECK(j == called++);
                   const index_t g = step * total + run.micro_batch(j, s.per_rank);
                   return cross_entropy(model(batch_of(g, where, 0)), batch_of(g, where, 1));
                 },
                 {.clip = 0.5});
    CHECK(called == s.per_rank);
    result.losses.push_back(r.loss);
    result.norms.push_back(r.norm);
  }
  result.parameters = elements_of(run.full());
  return result;
}

template <class Plan>
outcome train_stages(const setting& s) {
  std::vector<outcome> of(static_cast<std::size_t>(s.sizes.ranks()));
  run_ranks(static_cast<int>(s.sizes.ranks()), [&](communicator& ranks) {
    of[static_cast<std::size_t>(ranks.rank())] = train_stage<Plan>(ranks, s);
  });
  for (const outcome& r : of) {
    CHECK(r.losses == of[0].losses);
    CHECK(r.norms == of[0].norms);
    CHECK(r.parameters == of[0].parameters);
  }
  return of[0];
}

template <int Stage>
using plan = policy<strategy::mesh<pp<>, dp, fsdp<Stage>>>;

/// The same with programs for divided backward steps.
template <int Stage>
using plan_in_parts = policy<strategy::mesh<pp<pipeline::zb_h1>, dp, fsdp<Stage>>>;

/// One rank with as many micro-batches.
const outcome& whole(setting s) {
  static std::vector<std::pair<std::string, outcome>> known;
  s.per_rank *= s.sizes.dp * s.sizes.fsdp;
  s.sizes = {};
  s.schedule = "1f1b";
  s.blocks.clear();
  const std::string key = to_string(s) + std::to_string(s.model_blocks);
  for (const auto& [k, o] : known)
    if (k == key) return o;
  known.emplace_back(key, train_stages<plan<0>>(s));
  return known.back().second;
}

template <int Stage, template <int> class Plan = plan>
void compare(setting s) {
  INFO("ZeRO " << Stage << ", " << to_string(s));
  const outcome one = whole(s), staged = train_stages<Plan<Stage>>(s);
  if (s.deterministic) {
    CHECK(staged.losses == one.losses);
    CHECK(staged.norms == one.norms);
    CHECK(staged.parameters == one.parameters);
  } else {
    CHECK(largest_relative_difference(staged.losses, one.losses) < 1e-5);
    CHECK(largest_relative_difference(staged.norms, one.norms) < 1e-5);
  }
}

const char* const schedules[] = {"gpipe", "1f1b", "interleaved:2", "interleaved:3", "breadth-first:2"};

}  // namespace

TEST_CASE("pipelines train as one rank does, under every schedule") {
  for (const int stages : {2, 3})
    for (const char* schedule : schedules)
      for (const bool deterministic : {true, false})
        for (const index_t m : {stages, 2 * stages})
          compare<0>(
              {.sizes = {.pp = stages}, .schedule = schedule, .per_rank = m, .deterministic = deterministic});
  for (const char* schedule : {"gpipe", "1f1b"})
    compare<0>({.sizes = {.pp = 4}, .schedule = schedule, .per_rank = 5});
  compare<0>({.sizes = {.pp = 3}, .schedule = "layer-wise", .per_rank = 1});
}

TEST_CASE("divided backward steps give the same gradients") {
  for (const bool deterministic : {true, false}) {
    for (const int stages : {1, 2, 3, 4})
      for (const index_t m : {stages, 2 * stages, 7})
        for (const char* schedule : {"zb-h1", "zb-v", "dual-pipe-v", "1f1b"})
          if (m >= 2 * stages || std::string_view(schedule) != "dual-pipe-v")
            compare<0, plan_in_parts>({.sizes = {.pp = stages},
                                       .schedule = schedule,
                                       .per_rank = m,
                                       .deterministic = deterministic});
    compare<0, plan_in_parts>(
        {.sizes = {.pp = 2, .dp = 2}, .schedule = "zb-h1", .deterministic = deterministic});
    compare<3, plan_in_parts>(
        {.sizes = {.pp = 2, .fsdp = 2}, .schedule = "zb-v", .deterministic = deterministic});
  }
}

TEST_CASE("all ranks divide the blocks alike, though the cost of their micro-batches differs") {
  std::vector<parallel::block_range> first_chunks(4);
  run_ranks(4, [&](communicator& ranks) {
    const device where = one_thread();
    // The cost of a head of 300 words beside that of a block depends on the number of rows.
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
      setting s{.sizes = {.pp = 2, .dp = 2}, .schedule = schedule, .deterministic = deterministic};
      compare<0>(s);
      s.sizes = {.pp = 2, .fsdp = 2};
      compare<1>(s);
      compare<2>(s);
      compare<3>(s);
    }
  compare<3>({.sizes = {.pp = 2, .dp = 2, .fsdp = 2}, .deterministic = true});
}
