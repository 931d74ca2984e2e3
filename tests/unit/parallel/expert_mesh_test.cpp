// SPDX-License-Identifier: MIT
// Expert parallelism combined with every other axis of a mesh: losses, norms and parameters equal those of
// one rank, including the gradients of auxiliary losses.
#include <doctest/doctest.h>

#include <weft/parallel/context_pipeline.hpp>
#include <weft/parallel/expert_parallel.hpp>
#include <weft/train/checkpoint.hpp>
#include <weft/train/weights.hpp>

#include "../../../examples/gpt2_experts.hpp"
#include "../../checkpoints.hpp"
#include "divided_positions.hpp"

using namespace divided_positions;

namespace {

using gpt = gpt2::model_of_experts;

gpt2::config sparse(double capacity_factor = 0) {
  gpt2::config c = small;
  c.experts = 3;
  c.experts_per_token = 2;
  c.capacity_factor = capacity_factor;
  return c;
}

/// Four batches, shared by 1, 2 or 4 ranks. With a capacity, more than a third of the choices are dropped.
template <class... Axes>
void trains(std::initializer_list<mesh_sizes> meshes) {
  for (const double capacity_factor : {0.0, 0.6}) {
    CAPTURE(capacity_factor);
    const gpt2::config c = sparse(capacity_factor);
    outcome one;
    run_ranks(1,
              [&](communicator& ranks) { one = trained<policy<strategy::mesh<dp>>, gpt>(ranks, {}, c, 4); });
    for (const mesh_sizes& n : meshes) trains_as_one_rank<policy<strategy::mesh<Axes...>>, gpt>(one, n, c, 4);
  }
}

using staged = policy<strategy::mesh<pp<>, dp, fsdp<3>, ep>>;
using layered = policy<strategy::mesh<dp, fsdp<3>, ep, tp<>>>;

/// Calls f(run, step) on the ranks of a mesh.
template <class Plan, class F>
void on_ranks(const mesh_sizes& n, F f) {
  run_ranks(static_cast<int>(n.ranks()), [&](communicator& ranks) {
    auto model = gpt::create(sparse());
    initialize(model, 3);
    adamw optimizer{.lr = 1e-2};
    auto run = bind<Plan>(model, optimizer, ranks, n);
    const tokens x = batch(0, 0), y = batch(0, 1);
    const auto loss = [&](index_t) { return model.loss(x, y, length); };
    if constexpr (requires { run.stage(); }) run.prepare(loss(0), n.pp);
    f(run, [&] { run.step(n.pp, loss); });
  });
}
template <class F>
void for_each_mesh(F f) {
  for (const mesh_sizes& n : {mesh_sizes{}, {.pp = 2, .ep = 2}, {.pp = 2, .fsdp = 2, .ep = 2}})
    f(n, std::type_identity<staged>());
  for (const mesh_sizes& n : {mesh_sizes{.ep = 2, .tp = 2}, {.fsdp = 2, .ep = 3, .tp = 2}})
    f(n, std::type_identity<layered>());
}

}  // namespace

TEST_CASE("checkpoints and weights with experts, from any mesh to any other: the bits that were saved") {
  const test::folder from("weft-experts");
  for_each_mesh([&]<class First>(const mesh_sizes& first, std::type_identity<First>) {
    std::vector<float> saved, state;
    on_ranks<First>(first, [&](auto& run, auto step) {
      step();
      checkpointer saves(from.name(), run);
      saves.save({1, 1});
      saves.finish();
      save_weights(from.name() + "/weights", run);
      const auto all = test::elements_of(run.full()), optimizer = test::elements_of(run.full_optimizer());
      if (run.ranks().rank() == 0) saved = all, state = optimizer;
    });
    CHECK(state.size() == 2 * saved.size());
    for_each_mesh([&]<class Second>(const mesh_sizes& second, std::type_identity<Second>) {
      INFO(to_string(first) << " to " << to_string(second));
      on_ranks<Second>(second, [&](auto& run, auto step) {
        CHECK(checkpointer(from.name(), run, {.read_only = true}).load()->samples == 1);
        CHECK(test::elements_of(run.full()) == saved);
        CHECK(test::elements_of(run.full_optimizer()) == state);
        step();
        load_weights(from.name() + "/weights", run);
        CHECK(test::elements_of(run.full()) == saved);
      });
    });
    std::filesystem::remove_all(from.path);
  });
}

TEST_CASE("experts and layers divided") {
  trains<dp, fsdp<3>, ep, tp<>>(
      {{.ep = 2, .tp = 2}, {.dp = 2, .ep = 2, .tp = 2}, {.fsdp = 2, .ep = 2, .tp = 2}, {.ep = 4, .tp = 4}});
}

TEST_CASE("experts and positions divided") {
  trains<dp, fsdp<3>, cp<>, ep>({{.cp = 3},
                                 {.cp = 2, .ep = 2},
                                 {.dp = 2, .cp = 2, .ep = 2},
                                 {.fsdp = 2, .cp = 3, .ep = 2},
                                 {.cp = 2, .ep = 4}});
}

TEST_CASE("experts divided on the stages of a pipeline") {
  trains<pp<>, dp, fsdp<3>, ep>(
      {{.pp = 2, .ep = 2}, {.pp = 2, .dp = 2, .ep = 2}, {.pp = 2, .fsdp = 2, .ep = 2}, {.pp = 2, .ep = 4}});
}

TEST_CASE("experts, layers and positions divided on the stages of a pipeline") {
  trains<pp<>, dp, cp<>, ep, tp<>>({{.pp = 2, .cp = 2, .ep = 2, .tp = 2}, {.pp = 2, .cp = 2, .ep = 2}});
}
