// SPDX-License-Identifier: MIT
// Checkpoints from any boxes to any others, and checkpoints written by an earlier version.
#include <doctest/doctest.h>

#include "../../box_run.hpp"
#include "../../checkpoints.hpp"

using namespace weft;
using namespace weft::test;

namespace {
device one_thread() { return device(std::make_shared<cpu::cpu_backend>(1)); }
}  // namespace

TEST_CASE("random tensors from random meshes of writers to random meshes of readers: the same bits") {
  random_source random(1);
  const test::folder f("weft-boxes");
  for (int round = 0; round < 60; ++round) {
    const box_model m = box_model::random(random, 8, 2);
    fs::remove_all(f.path);
    const int owners = 1 + static_cast<int>(below(random, 6)),
              copies = 1 + static_cast<int>(below(random, 2));
    const box_plan plan = random_plan(random, m, owners);
    run_ranks(owners * copies, [&](communicator& ranks) {
      box_run run(ranks, copies, m, plan, true, one_thread());
      run.optimizer().steps = 7;
      checkpointer saves(f.name(), run, {.asynchronous = round % 2 == 0});
      saves.save({3, 30});
      saves.finish();
    });
    for (int again = 0; again < 2; ++again) {
      const int readers = 1 + static_cast<int>(below(random, 6)),
                sets = 1 + static_cast<int>(below(random, 2));
      const box_plan other = random_plan(random, m, readers);
      run_ranks(readers * sets, [&](communicator& ranks) {
        INFO("round " << round << ": " << owners << " ranks to " << readers << ", rank " << ranks.rank());
        box_run run(ranks, sets, m, other, false, one_thread());
        checkpointer saves(f.name(), run, {.read_only = true});
        CHECK(saves.load()->samples == 30);
        CHECK(run.optimizer().steps == 7);
        CHECK(run.has(m, true));
      });
    }
  }
}

TEST_CASE("a rank that owns a subset of the parameters writes and reads those alone") {
  random_source random(2);
  const test::folder f("weft-boxes-subset");
  const box_model m = box_model::random(random, 12, 0);
  box_plan stages;  // two stages, the first with 5 tensors
  for (std::size_t i = 0; i < m.tensors.size(); ++i)
    stages.push_back({{i < 5 ? 0 : 1, whole_box(parallel::in_rows(m.tensors[i].whole.extents))}});
  run_ranks(2, [&](communicator& ranks) {
    box_run run(ranks, 1, m, stages, true, one_thread());
    checkpointer saves(f.name(), run);
    saves.save({1, 1});
    saves.finish();
    box_run same(ranks, 1, m, stages, false, one_thread());
    checkpointer(f.name(), same, {.read_only = true}).load();
    CHECK(same.has(m, true));
  });
  const auto shard = [&](const char* name) { return io::read_safetensors(f.name() + "/step-1.1/" + name); };
  CHECK(shard("rank-0.safetensors").tensors.contains("model.t4.weight"));
  CHECK(!shard("rank-0.safetensors").tensors.contains("model.t5.weight"));
  CHECK(!shard("rank-1.safetensors").tensors.contains("model.t4.weight"));
}

TEST_CASE("boxes that do not tile are refused when they are written, by name") {
  const test::folder f("weft-boxes-bad");
  box_model m;
  m.tensors.push_back({"w", {dtype::f32, {2, {4, 6}}}, false, false, {{"", std::string(96, 'x')}}});
  const auto said = [&](const box_plan& plan, int n) {
    std::string text;
    run_ranks(n, [&](communicator& ranks) {
      box_run run(ranks, 1, m, plan, true, one_thread());
      checkpointer saves(f.name(), run);
      saves.save({1, 1});
      try {
        saves.finish();
      } catch (const io_error& e) {
        if (ranks.rank() == 0) text = e.what();
      }
    });
    return text;
  };
  const auto rows = [](index_t first, index_t n) { return box{{2, {first, 0}}, {2, {n, 6}}}; };
  const auto columns = [](index_t first, index_t n) { return box{{2, {0, first}}, {2, {4, n}}}; };
  CHECK(said({{{0, columns(0, 2)}, {1, columns(2, 4)}}}, 2) == "");
  CHECK(has(said({{{0, columns(0, 2)}, {1, columns(3, 3)}}}, 2),
            ": tensor model.w: [0:4, 2:3] of [4, 6] is in no shard"));
  CHECK(has(said({{{0, columns(0, 3)}, {1, columns(2, 4)}}}, 2),
            "rank-0.safetensors: tensor model.w: [0:4, 2:3] is also in "));
  CHECK(has(said({{{0, rows(0, 2)}, {1, rows(2, 2)}, {2, columns(5, 1)}}}, 3),
            "rank-2.safetensors: tensor model.w: [0:2, 5:6] is also in ") == false);  // rank 0 comes first
  CHECK(has(said({{{0, rows(0, 2)}, {1, rows(2, 2)}, {2, columns(5, 1)}}}, 3),
            "rank-0.safetensors: tensor model.w: [0:2, 5:6] is also in "));
}

TEST_CASE("checkpoints of another model are refused by tensor") {
  const test::folder f("weft-boxes-other");
  const auto of = [](const char* name, const tensor_spec& t) {
    box_model m;
    m.tensors.push_back({name, t, false, false, {{"", std::string(bytes_of(t.extents, t.type), 'x')}}});
    return m;
  };
  const auto with = [&](const box_model& m, auto use) {
    self_communicator alone;
    box_run run(alone, 1, m, {{{0, whole_box(parallel::in_rows(m.tensors[0].whole.extents))}}}, true,
                one_thread());
    use(run);
  };
  with(of("w", {dtype::f32, {2, {4, 6}}}), [&](box_run& run) {
    checkpointer saves(f.name(), run);
    saves.save({1, 1});
    saves.finish();
  });
  const auto refused = [&](const box_model& m, const char* why) {
    with(m, [&](box_run& run) {
      CHECK_THROWS_WITH_AS(checkpointer(f.name(), run, {.read_only = true}).load(), doctest::Contains(why),
                           io_error);
    });
  };
  refused(of("w", {dtype::bf16, {2, {4, 6}}}),
          "tensor model.w is f32 [4, 6], but the model expects bf16 [4, 6]");
  refused(of("w", {dtype::f32, {2, {6, 4}}}),
          "tensor model.w is f32 [4, 6], but the model expects f32 [6, 4]");
  refused(of("v", {dtype::f32, {2, {4, 6}}}), "this one has no model.w");
}

TEST_CASE("what an earlier version has written, rows with one checksum each, is read by any ranks") {
  const std::string place = std::string(WEFT_TEST_DATA) + "/checkpoint-2";
  std::map<std::string, std::string> whole;
  for (int part = 0; part < 2; ++part)
    for (const auto& [key, t] :
         io::read_safetensors(detail::path_of_shard(place + "/step-2.1", part)).tensors)
      whole[key] += std::string(t.bytes.begin(), t.bytes.end());
  CHECK(whole.size() == 7);
  for (int n = 1; n <= 4; ++n)
    run_ranks(n, [&](communicator& ranks) {
      bound_net net(ranks, 99);
      const auto at = checkpointer(place, net.run, {.read_only = true}).load();
      REQUIRE(at);
      CHECK(at->step == 2);
      CHECK(at->samples == 20);
      const auto same = [&](const std::string& key, const tensor_state& t) {
        return std::string(static_cast<const char*>(t.memory.data()), t.bytes()) == whole.at(key);
      };
      for (const auto& [name, t] : net.run.full()) CHECK(same("model." + name, *t));
      for (const auto& [name, t] : net.run.full_optimizer()) CHECK(same("optimizer." + name, *t));
      net.train(1);
    });
}
