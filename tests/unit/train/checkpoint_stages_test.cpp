// SPDX-License-Identifier: MIT
// Checkpoints and weight files of pipelines, in which a rank holds only some of the parameters: from any mesh
// to any other.
#include <cstring>

#include <weft/parallel/pipeline.hpp>
#include <weft/train/checkpoint.hpp>
#include <weft/train/weights.hpp>

#include "../../checkpoints.hpp"
#include "../parallel/training.hpp"

using namespace weft;
using training::batch_of;
using training::elements_of;
using training::one_thread;

namespace {

template <int Stage>
using plan = policy<strategy::mesh<pp<>, dp, fsdp<Stage>>>;

/// Calls f(model, run) on the ranks of a mesh.
template <int Stage, class F>
void on_mesh(const mesh_sizes& sizes, F f) {
  run_ranks(static_cast<int>(sizes.ranks()), [&](communicator& ranks) {
    const device where = one_thread();
    training::net model = training::net::create(Stage == 3 ? where.deferred() : where);
    initialize(model, 5);
    adamw optimizer{.lr = 1e-2};
    auto run = bind<plan<Stage>>(model, optimizer, ranks, sizes);
    run.seed = 3;
    run.prepare(cross_entropy(model(batch_of(0, where, 0)), batch_of(0, where, 1)), 4);
    f(model, run);
  });
}

/// Calls `f` with the sizes and stage of each mesh, as template arguments.
template <class F>
void for_each_mesh(F f) {
  f(mesh_sizes{}, std::integral_constant<int, 0>{});
  f(mesh_sizes{.pp = 2}, std::integral_constant<int, 0>{});
  f(mesh_sizes{.pp = 3}, std::integral_constant<int, 0>{});
  f(mesh_sizes{.pp = 2, .dp = 2}, std::integral_constant<int, 0>{});
  f(mesh_sizes{.fsdp = 3}, std::integral_constant<int, 3>{});
  f(mesh_sizes{.pp = 2, .fsdp = 2}, std::integral_constant<int, 3>{});
  f(mesh_sizes{.pp = 2, .dp = 2, .fsdp = 2}, std::integral_constant<int, 3>{});
}

void train(const training::net& model, auto& run, int steps) {
  for (int s = 0; s < steps; ++s)
    run.step(4, [&](index_t j) {
      return cross_entropy(model(batch_of(j, run.where(), 0)), batch_of(j, run.where(), 1));
    });
}

/// The elements of all tensors in the shards of a checkpoint, by key: rows in the order of their offsets.
std::map<std::string, std::string> saved_in(const std::string& folder) {
  std::map<std::string, std::map<std::int64_t, std::string>> rows;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() != ".safetensors") continue;
    const io::stored_tensors shard = io::read_safetensors(file.path().string());
    for (const auto& [key, t] : shard.tensors)
      if (!t.bytes.empty())
        rows[key][std::stoll(shard.metadata.at(key))] = std::string(t.bytes.begin(), t.bytes.end());
  }
  std::map<std::string, std::string> all;
  for (const auto& [key, pieces] : rows)
    for (const auto& [first, bytes] : pieces) all[key] += bytes;
  return all;
}

}  // namespace

TEST_CASE("pipelines: from any mesh to any other, the bits that were saved; and weights in one file") {
  const test::folder from("weft-stages"), to("weft-stages-again");
  for_each_mesh([&](const mesh_sizes& first, auto stage) {
    std::filesystem::remove_all(from.path);
    std::vector<float> saved;
    std::string file;
    on_mesh<stage.value>(first, [&](const training::net& model, auto& run) {
      checkpointer saves(from.name(), run);
      train(model, run, 2);
      saves.save({2, 8});
      saves.finish();
      save_weights(from.name() + "/weights", run);
      const auto all = elements_of(run.full());
      if (run.ranks().rank() == 0) saved = all, file = test::bytes_of_file(from.path / "weights");
    });
    const auto state = saved_in(from.name() + "/step-2.1");
    CHECK(state.size() == 3 * 21);  // parameters, and two tensors of AdamW for each
    for_each_mesh([&](const mesh_sizes& second, auto other) {
      INFO(to_string(first) << " to " << to_string(second));
      std::filesystem::remove_all(to.path);
      on_mesh<other.value>(second, [&](const training::net& model, auto& run) {
        CHECK(checkpointer(from.name(), run, {.read_only = true}).load()->samples == 8);
        CHECK(elements_of(run.full()) == saved);
        checkpointer saves(to.name(), run);
        saves.save({2, 8});
        saves.finish();
        train(model, run, 1);
        load_weights(from.name() + "/weights", run);
        CHECK(elements_of(run.full()) == saved);
        save_weights(to.name() + "/weights", run);
      });
      CHECK(saved_in(to.name() + "/step-2.1") == state);
      CHECK(test::bytes_of_file(to.path / "weights") == file);
    });
  });
}

TEST_CASE("all ranks of a pipeline begin with what rank 0 has, also of what several stages hold") {
  training::net whole = training::net::create(one_thread());
  initialize(whole, 5);
  for (const bool deferred : {false, true})
    run_ranks(4, [&](communicator& ranks) {
      const device where = one_thread();
      training::net model = training::net::create(deferred ? where.deferred() : where);
      initialize(model, 5 + static_cast<std::uint64_t>(ranks.rank()));
      adamw optimizer;
      auto run = bind<plan<0>>(model, optimizer, ranks, {.pp = 2, .dp = 2});
      run.prepare(cross_entropy(model(batch_of(0, where, 0)), batch_of(0, where, 1)), 2);
      CHECK(elements_of(run.full()) == elements_of(state_dict(whole)));
      for (const held_tensor& t : run.held_tensors())
        if (t.local && t.name == "table.weight")
          CHECK(std::memcmp(t.local->memory.data(), whole.table.weight.data(), t.local->bytes()) == 0);
    });
}
