// SPDX-License-Identifier: MIT
// Checkpoints and weight files of sharded layers, of which a rank has columns, rows or several groups of
// them: from any mesh to any other.
#include <weft/parallel/pipeline.hpp>
#include <weft/parallel/tensor_parallel.hpp>
#include <weft/train/checkpoint.hpp>
#include <weft/train/weights.hpp>

#include "../../checkpoints.hpp"
#include "../parallel/divided_training.hpp"

using namespace training;

namespace {

using plan = policy<strategy::mesh<pp<>, dp, fsdp<3>, tp<>>>;

/// A model with a parameter of which ranks have columns of three groups, in units of 2; no loss reads it.
struct model_with_groups {
  divided_model::net net = divided_model::net::create(2);
  parameter<extents<5, 18>, float, divided::along<1, 3, 2>> groups =
      make_parameter(extents<5, 18>{}, init::normal(1));
};

/// Calls f(run, model) on the ranks of a mesh.
template <class F>
void on_mesh(const mesh_sizes& sizes, std::uint64_t seed, F f) {
  run_ranks(static_cast<int>(sizes.ranks()), [&](communicator& ranks) {
    model_with_groups model;
    initialize(model, seed);
    adamw optimizer{.lr = 1e-2};
    auto run = bind<plan>(model, optimizer, ranks, sizes);
    const auto words = divided_model::batch(0, 0);
    run.prepare(cross_entropy(model.net(words), words), 2);
    f(run, model);
  });
}

constexpr mesh_sizes meshes[] = {
    {}, {.tp = 2}, {.tp = 3}, {.fsdp = 4}, {.fsdp = 2, .tp = 2}, {.pp = 2, .tp = 2}, {.dp = 2, .tp = 2}};

}  // namespace

TEST_CASE("divided layers: from any mesh to any other, the bits that were saved; and weights in one file") {
  const test::folder from("weft-layers"), to("weft-layers-again");
  for (const mesh_sizes& first : meshes) {
    std::filesystem::remove_all(from.path);
    std::vector<float> saved, state;
    std::string file;
    on_mesh(first, 5, [&](auto& run, const model_with_groups& model) {
      checkpointer saves(from.name(), run);
      run.step(2, [&](index_t j) {
        return cross_entropy(model.net(divided_model::batch(j, 0)), divided_model::batch(j, 1));
      });
      saves.save({1, 4});
      saves.finish();
      save_weights(from.name() + "/weights", run);
      const auto all = elements_of(run.full());
      if (run.ranks().rank() == 0) saved = all, file = test::bytes_of_file(from.path / "weights");
    });
    for (const mesh_sizes& second : meshes) {
      INFO(to_string(first) << " to " << to_string(second));
      std::filesystem::remove_all(to.path);
      on_mesh(second, 6, [&](auto& run, const model_with_groups&) {
        CHECK(elements_of(run.full()) != saved);
        CHECK(checkpointer(from.name(), run, {.read_only = true}).load()->samples == 4);
        CHECK(elements_of(run.full()) == saved);
        checkpointer saves(to.name(), run);
        saves.save({1, 4});
        saves.finish();
      });
      on_mesh({}, 7, [&](auto& run, const model_with_groups&) {  // and what they have written themselves
        checkpointer(to.name(), run, {.read_only = true}).load();
        const auto all = elements_of(run.full_optimizer());
        CHECK(elements_of(run.full()) == saved);
        if (state.empty()) state = all;
        CHECK(all == state);
        CHECK(!all.empty());
      });
      on_mesh(second, 8, [&](auto& run, const model_with_groups&) {
        load_weights(from.name() + "/weights", run);
        CHECK(elements_of(run.full()) == saved);
        save_weights(to.name() + "/weights", run);
      });
      CHECK(test::bytes_of_file(to.path / "weights") == file);
    }
  }
}
