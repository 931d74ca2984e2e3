// SPDX-License-Identifier: MIT
// The costs of a pipeline step: the bytes sent along each axis, by formula, and the memory of a stage, known
// before the step.
#include <weft/comm/counting.hpp>
#include <weft/parallel/schedule/live.hpp>

#include "pipelines.hpp"

using namespace pipelines;

namespace {

constexpr net_sizes narrow{.rows = 11, .width = 6, .hidden = 200};

net make_net(const device& where, int blocks) {
  net n = net::create(where, narrow);
  n.h.blocks.clear();
  for (int i = 0; i < blocks; ++i)
    n.h.blocks.push_back({layer_normalization<>::create(narrow.width, where),
                          linear<>::create(narrow.width, narrow.hidden, where),
                          linear<>::create(narrow.hidden, narrow.width, where)});
  return n;
}

const auto loss = [](const net& model, const device& where, index_t number) {
  return cross_entropy(model(batch_of(number, where, 0)), batch_of(number, where, 1));
};

constexpr index_t activation = 4 * 5 * 6, table = 4 * 11 * 6;  // bytes

/// The bytes of the second step by axis, over all ranks.
template <class Plan>
axis_bytes sent_in_step(const setting& s, int blocks) {
  std::vector<axis_bytes> of(static_cast<std::size_t>(s.sizes.ranks()));
  run_ranks(static_cast<int>(s.sizes.ranks()), [&](communicator& ranks) {
    const device where = one_thread();
    net model = make_net(where, blocks);
    adamw optimizer;
    auto run = bind<Plan>(model, optimizer, ranks, mesh_options<Plan>(s), stages_of(s));
    for (const index_t m : s.per_rank)
      of[static_cast<std::size_t>(ranks.rank())] =
          run.step(m, [&](index_t j) { return loss(model, where, j); }, {.clip = 1}).sent_by_axis;
  });
  axis_bytes all{};
  for (const axis_bytes& a : of)
    for (std::size_t i = 0; i < all.size(); ++i) all[i] += a[i];
  return all;
}

index_t on(const axis_bytes& all, mesh_axis a) { return all[static_cast<std::size_t>(a)]; }

/// Checks the bytes on each axis: `data` is sent on `axis` by the data-parallel ranks of all stages.
template <class... Axes>
void check_bytes(const setting& s, int blocks, mesh_axis axis, index_t data) {
  INFO(to_string(s) << ", " << blocks << " blocks");
  const axis_bytes sent = sent_in_step<policy<strategy::mesh<pp<>, Axes...>>>(s, blocks);
  const index_t m = s.per_rank.back(), copies = s.sizes.dp * s.sizes.fsdp;
  const int chunks = pipeline::schedule_named(s.schedule, s.sizes.pp, static_cast<int>(m)).chunks();
  // A sharded rank exchanges its rows of the table.
  CHECK(on(sent, mesh_axis::pp) == 2 * activation * m * (chunks - 1) * copies + 2 * table * s.sizes.dp);
  for (const mesh_axis a : {mesh_axis::dp, mesh_axis::fsdp}) CHECK(on(sent, a) == (a == axis ? data : 0));
}

}  // namespace

TEST_CASE("exactly the bytes of the formulas are sent, along each axis") {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved:2", "breadth-first:2"})
    for (const int stages : {2, 3})
      for (const index_t m : {stages, 2 * stages})
        check_bytes(
            {.sizes = {.pp = stages}, .schedule = schedule, .per_rank = {m, m}, .deterministic = false}, 7,
            mesh_axis::dp, 0);
  check_bytes({.sizes = {.pp = 3}, .per_rank = {2, 4}, .deterministic = false, .blocks = {4, 1, 2}}, 7,
              mesh_axis::dp, 0);
  // Both stages reduce their gradient of the table.
  const index_t all = 4 * parameter_count(make_net(one_thread(), 5)) + table;
  for (const auto& blocks : {std::vector<index_t>{}, std::vector<index_t>{4, 1}}) {
    setting s{.sizes = {.pp = 2, .dp = 2}, .per_rank = {4, 4}, .deterministic = false, .blocks = blocks};
    check_bytes<dp>(s, 5, mesh_axis::dp, 2 * all);
    s.sizes = {.pp = 2, .fsdp = 2};
    check_bytes<fsdp<1>>(s, 5, mesh_axis::fsdp, all + all);
    check_bytes<fsdp<2>>(s, 5, mesh_axis::fsdp, 4 * all + all);
  }
}

namespace {

/// The elements of a block's parameters, and of those that its backward pass reads: not the bias of the norm,
/// whose value is kept, nor the bias of `out`.
constexpr index_t block_size = 2 * 6 + 200 * 6 + 200 + 6 * 200 + 6, read_again = block_size - 6 - 6;
/// The same outside blocks: the table in the first chunk, and the last norm and the table in the last chunk.
index_t end_size(int chunk, int chunks) {
  return chunk == 0 ? 11 * 6 : chunk + 1 == chunks ? 2 * 6 + 11 * 6 : 0;
}

struct sharded_bytes {
  index_t fsdp = 0, dp = 0;
};

/// The traffic of all ranks in a step under ZeRO stage 3. Every forward and every backward pass gathers the
/// blocks of its chunk. Parameters outside blocks are gathered by a forward pass if the chunk has no other
/// micro-batch in flight, and stay. Every backward pass reduces all gradients of its chunk.
sharded_bytes sharded_step(const setting& s) {
  const index_t m = s.per_rank.back();
  const pipeline::schedule all = pipeline::schedule_named(s.schedule, s.sizes.pp, static_cast<int>(m));
  index_t gathered = 0, reduced = 0;
  for (const auto& list : all.steps) {
    std::vector<int> in_flight(all.stage_of.size(), 0);
    for (const pipeline::step& e : list) {
      const index_t blocks = s.blocks[static_cast<std::size_t>(e.chunk)],
                    ends = end_size(e.chunk, all.chunks());
      int& flying = in_flight[static_cast<std::size_t>(e.chunk)];
      if (e.kind == pipeline::step_kind::forward) {
        gathered += blocks * block_size + (flying++ == 0 ? ends : 0);
      } else {
        gathered += blocks * read_again;
        reduced += blocks * block_size + ends;
        --flying;
      }
    }
  }
  // gathered and reduced-scattered within fsdp; across dp, shards are all-reduced
  const index_t others = s.sizes.fsdp - 1;
  return {4 * s.sizes.dp * others * (gathered + reduced), 2 * 4 * (s.sizes.dp - 1) * reduced};
}

}  // namespace

TEST_CASE("ZeRO-3 on stages: parameters are gathered for each chunk and micro-batch, and no more") {
  using plan = policy<strategy::mesh<pp<>, dp, fsdp<3>>>;
  for (const mesh_sizes& sizes : {mesh_sizes{.pp = 2, .fsdp = 2}, mesh_sizes{.pp = 3, .fsdp = 2},
                                  mesh_sizes{.pp = 2, .fsdp = 3}, mesh_sizes{.pp = 2, .dp = 2, .fsdp = 2}})
    for (const char* schedule : {"gpipe", "1f1b", "interleaved:2"})
      for (const index_t m : {sizes.pp, 2 * sizes.pp}) {
        const bool loops = std::string_view(schedule) == "interleaved:2";
        const setting s{.sizes = sizes,
                        .schedule = schedule,
                        .per_rank = {m, m},
                        .deterministic = false,
                        .blocks = loops ? std::vector<index_t>(static_cast<std::size_t>(2 * sizes.pp), 1)
                                  : sizes.pp == 2 ? std::vector<index_t>{4, 2}
                                                  : std::vector<index_t>{3, 1, 2}};
        INFO(to_string(s));
        const int blocks = loops ? 2 * sizes.pp : 6;
        const axis_bytes sent = sent_in_step<plan>(s, blocks);
        const sharded_bytes expected = sharded_step(s);
        CHECK(on(sent, mesh_axis::fsdp) == expected.fsdp);
        CHECK(on(sent, mesh_axis::dp) == expected.dp);
      }
}

namespace {

struct memory_of_stage {
  std::size_t peak, after_prepare;
};

/// The peak of two steps on this rank.
template <class Plan>
memory_of_stage memory_of(communicator& ranks, const device& where, const setting& s, int blocks) {
  net model = make_net(where.deferred(), blocks);
  adamw optimizer;
  auto run = bind<Plan>(model, optimizer, ranks, mesh_options<Plan>(s), stages_of(s));
  run.recompute_programs = s.recompute;
  run.prepare(loss(model, where, 0), s.per_rank[0]);
  const std::size_t before = where.memory().figures().in_use;
  for (const index_t m : s.per_rank)
    run.step(m, [&](index_t j) { return loss(model, where, j); }, {.clip = 1});
  return {where.memory().figures().peak, before};
}

/// The same for a stage of simulated ranks, on a device that computes nothing.
template <class Plan>
memory_of_stage forecast_of(int rank, const setting& s, int blocks) {
  counting_communicator nowhere(rank, static_cast<int>(s.sizes.ranks()));
  return memory_of<Plan>(nowhere, device(std::make_shared<counting_backend>()), s, blocks);
}

}  // namespace

TEST_CASE("what a stage holds is known before the first step, to the byte") {
  using plan = policy<strategy::mesh<pp<>>>;
  for (const char* schedule : {"gpipe", "1f1b", "interleaved:2", "breadth-first:2"})
    for (const bool deterministic : {false, true})
      for (const int recompute : {0, 1}) {
        const setting s{.sizes = {.pp = 3},
                        .schedule = schedule,
                        .per_rank = {6, 6},
                        .deterministic = deterministic,
                        .recompute = recompute};
        run_ranks(3, [&](communicator& ranks) {
          const memory_of_stage forecast = forecast_of<plan>(ranks.rank(), s, 7);
          const memory_of_stage used = memory_of<plan>(ranks, one_thread(), s, 7);
          INFO(to_string(s) << ", stage " << ranks.rank());
          CHECK(used.peak == forecast.peak);
          CHECK(used.after_prepare == forecast.after_prepare);
        });
      }
  using hybrid = policy<strategy::mesh<pp<>, dp, fsdp<3>>>;  // messages may complete earlier than assumed
  const setting s{.sizes = {.pp = 2, .dp = 2, .fsdp = 2}};
  run_ranks(8, [&](communicator& ranks) {
    const memory_of_stage forecast = forecast_of<hybrid>(ranks.rank(), s, 5);
    const memory_of_stage used = memory_of<hybrid>(ranks, one_thread(), s, 5);
    CHECK(used.peak <= forecast.peak);
    CHECK(used.after_prepare == forecast.after_prepare);
  });
}

TEST_CASE("a stage holds the activations of as many micro-batches as its schedule says") {
  using plan = policy<strategy::mesh<pp<>>>;
  constexpr int p = 4;
  const auto peak = [&](const char* schedule, int stage, index_t m) {
    const setting s{.sizes = {.pp = p},
                    .schedule = schedule,
                    .per_rank = {m, m},
                    .deterministic = false,
                    .blocks = {1, 1, 1, 1}};
    return static_cast<double>(forecast_of<plan>(stage, s, p).peak);
  };
  for (int stage = 0; stage < p; ++stage) {
    const double one = peak("gpipe", stage, 1), each = peak("gpipe", stage, 9) - peak("gpipe", stage, 8);
    CHECK(each > 5 * static_cast<double>(activation));  // more than any message
    for (const index_t m : {1, 2, 3, 4, 8}) {
      INFO("stage " << stage << ", " << m << " micro-batches");
      for (const char* schedule : {"gpipe", "1f1b"}) {
        const auto live = pipeline::live(pipeline::schedule_named(schedule, p, static_cast<int>(m)));
        CHECK(std::lround((peak(schedule, stage, m) - one) / each) + 1 ==
              live[static_cast<std::size_t>(stage)].activations);
      }
    }
  }
}
