// SPDX-License-Identifier: MIT
// Models bound to meshes: training equals that of one rank; what every rank holds; sizes that do not fit.
#include "training.hpp"

using namespace training;

namespace {

struct result {
  std::vector<double> losses;
  std::vector<double> parameters;
  index_t held = 0;  // optimizer state of this rank, bytes
  mesh_sizes sizes;
};

/// Four steps over the same twelve micro-batches, for any number of ranks.
template <class Plan>
result train_on_mesh(communicator& ranks, const mesh_sizes& sizes) {
  const device where = one_thread();
  net model = net::create(where);
  initialize(model, 5);
  adamw optimizer{.lr = 1e-2};
  auto run = bind<Plan>(model, optimizer, ranks, sizes);
  const index_t per_rank = 12 / ranks.size();
  result r;
  for (int s = 0; s < 4; ++s) {
    const auto step = run.step(per_rank, [&](index_t j) {
      return mean(square(model(batch_of(s * 12 + run.micro_batch(j, per_rank), where, 0))));
    });
    r.losses.push_back(step.loss);
  }
  for (const float p : elements_of(run.full())) r.parameters.push_back(p);
  r.held = run.optimizer_bytes();
  r.sizes = run.groups().sizes();
  return r;
}

template <class Plan>
result on_mesh(const mesh_sizes& sizes) {
  std::vector<result> all(static_cast<std::size_t>(sizes.ranks()));
  run_ranks(static_cast<int>(sizes.ranks()), [&](communicator& ranks) {
    all[static_cast<std::size_t>(ranks.rank())] = train_on_mesh<Plan>(ranks, sizes);
  });
  for (const result& r : all) {
    CHECK(r.losses == all[0].losses);
    CHECK(r.parameters == all[0].parameters);
    CHECK(r.sizes == sizes);
  }
  return all[0];
}

}  // namespace

TEST_CASE("meshes: one program for all sizes, with the training of one rank") {
  using replicas = policy<strategy::mesh<dp>>;
  using zero1 = policy<strategy::mesh<dp, fsdp<1>>>;
  using zero2 = policy<strategy::mesh<fsdp<2>, dp>>;  // the order of axes in the policy is irrelevant
  using zero3 = policy<strategy::mesh<dp, fsdp<3>>>;
  const result one = on_mesh<replicas>({});
  const auto check = [&](const result& r, int parts) {
    CHECK(test::largest_relative_difference(r.losses, one.losses) < 1e-5);
    CHECK(test::largest_relative_difference(r.parameters, one.parameters) <
          1e-3);  // AdamW divides small by small
    CHECK(r.held <=
          (one.held + parts - 1) / parts + 2 * 4 * 14 * 11);  // uneven rows: at most one of each more
  };
  check(on_mesh<replicas>({.dp = 3}), 1);
  for (const mesh_sizes& sizes : {mesh_sizes{}, mesh_sizes{.dp = 2, .fsdp = 2}, mesh_sizes{.fsdp = 3},
                                  mesh_sizes{.dp = 2}, mesh_sizes{.dp = 2, .fsdp = 3}}) {
    INFO(to_string(sizes));
    check(on_mesh<zero1>(sizes), sizes.fsdp);
    check(on_mesh<zero2>(sizes), sizes.fsdp);
    check(on_mesh<zero3>(sizes), sizes.fsdp);
  }
}

TEST_CASE("bind takes options beside a strategy, which says what is divided") {
  run_ranks(2, [](communicator& ranks) {
    net model = net::create(one_thread());
    adamw optimizer;
    using plan = policy<strategy::fully_sharded<2>>;
    const auto o = bind<plan>(model, optimizer, ranks, {.deterministic = true, .prefetch = 3}).options();
    CHECK((o.deterministic && o.prefetch == 3 && o.divide == sharding::gradients));
    CHECK_THROWS_WITH_AS(bind<plan>(model, optimizer, ranks, {.divide = sharding::optimizer}),
                         "weft: bind: divide and shard_ranks in the options differ from those of the policy",
                         usage_error);
    CHECK_THROWS_AS(bind<plan>(model, optimizer, ranks, {.layer_ranks = 2}), usage_error);
    using any_stage = policy<strategy::fully_sharded<stage_in_options>>;
    CHECK(bind<any_stage>(model, optimizer, ranks, {.divide = sharding::optimizer}).options().divide ==
          sharding::optimizer);
    CHECK(bind<any_stage>(model, optimizer, ranks, {.prefetch = 3}).options().divide == sharding::parameters);
    const char* const divides_nothing =
        "weft: bind: shard_ranks is 7, but the strategy divides neither parameters, nor gradients, nor "
        "optimizer state";
    CHECK_THROWS_WITH_AS(
        bind<policy<strategy::data_parallel>>(model, optimizer, ranks, parallel_options{.shard_ranks = 7}),
        divides_nothing, usage_error);
    CHECK_THROWS_WITH_AS(bind(model, optimizer, ranks, {.shard_ranks = 7}), divides_nothing, usage_error);
    CHECK_THROWS_AS(bind<plan>(model, optimizer, ranks, {.shard_ranks = 7}), usage_error);
  });
}

TEST_CASE("meshes: sizes that do not fit are refused in one line, before anything is sent") {
  run_ranks(4, [](communicator& ranks) {
    net model = net::create(one_thread());
    adamw optimizer;
    const auto refused = [&]<class Plan>(Plan*, const mesh_sizes& sizes, const char* why) {
      CHECK_THROWS_WITH_AS((bind<Plan>(model, optimizer, ranks, sizes)), why, usage_error);
    };
    policy<strategy::mesh<dp>>* const replicas = nullptr;
    policy<strategy::mesh<dp, fsdp<3>>>* const hybrid = nullptr;
    refused(replicas, {.fsdp = 4},
            "weft: bind: the mesh fsdp 4 has the axis fsdp, which the policy does not have");
    refused(hybrid, {.pp = 2, .dp = 2},
            "weft: bind: the mesh pp 2 x dp 2 has the axis pp, which the policy does not have");
    refused(hybrid, {.dp = 2}, "weft: mesh: dp 2 needs 2 ranks, but there are 4");
    refused(hybrid, {.dp = 2, .fsdp = 0}, "weft: mesh: fsdp is 0: expected 1 or more");
    CHECK(ranks.sent().total() == 0);
  });
}
