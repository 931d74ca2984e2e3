// SPDX-License-Identifier: MIT
// The parameters of pipelined models: created on a deferred device, loaded, equal to rank 0's; and values of
// statements, which every rank gets.
#include <unistd.h>

#include <cstdio>

#include <weft/io/tensor_files.hpp>
#include <weft/train/weights.hpp>

#include "../../../examples/gpt2.hpp"
#include "../../limited_backend.hpp"
#include "large_net.hpp"
#include "pipelines.hpp"

using namespace pipelines;

namespace {

const auto loss = [](const net& model, const device& where, index_t number) {
  return cross_entropy(model(batch_of(number, where, 0)), batch_of(number, where, 1));
};

using plan = policy<strategy::mesh<pp<>>>;

/// The elements of the parameters that this rank holds, and of the same parameters in `whole`.
template <class Run>
void check_held(const Run& run, const net& whole) {
  const state_dict_t all = named_parameters(whole);
  CHECK(run.local().size() < all.size());
  for (const auto& [name, p] : run.local()) {
    const auto same = std::find_if(all.begin(), all.end(), [&, n = &name](auto& o) { return o.first == *n; });
    INFO(name);
    CHECK(elements_of({{name, p}}) == elements_of({*same}));
  }
}

}  // namespace

TEST_CASE("a model whose parameters and optimizer state no rank could hold trains on four stages") {
  const net whole = large_net(one_thread(), 5);
  const auto bytes = static_cast<std::size_t>(4 * parameter_count(whole));
  const std::size_t limit = bytes * 2;  // of 3: parameters and two moments
  const setting s{.sizes = {.pp = 4}, .deterministic = false, .clip = 1};
  const auto by_adamw = [&](auto& run, net& model, const device& where) {
    return train_by(run, s, [&, m = &model](index_t number) { return loss(*m, where, number); }).losses;
  };
  CHECK_THROWS_AS(
      [&] {
        const device where(std::make_shared<test::limited_backend>(limit));
        net model = large_net(where, 5);
        adamw optimizer{.lr = 1e-2};
        self_communicator alone;
        auto run = bind<>(model, optimizer, alone, {});
        by_adamw(run, model, where);
      }(),
      out_of_memory_error);
  const outcome alone =
      train_alone<precision::f32>(s, [](const device& where) { return large_net(where, 5); }, loss);
  run_ranks(4, [&](communicator& ranks) {
    const device where(std::make_shared<test::limited_backend>(limit));
    net model = large_net(where.deferred(), 5);
    CHECK(where.memory().figures().in_use == 0);
    adamw optimizer{.lr = 1e-2};
    auto run = bind<plan>(model, optimizer, ranks, mesh_options<plan>(s), stages_of(s));
    run.zero_grad();  // of a model that is not divided yet: there are none
    run.prepare(loss(model, where, 0), 4);
    check_held(run, whole);
    run.seed = 3;
    std::vector<double> losses;
    index_t before = 0;
    for (const index_t m : s.per_rank) {
      losses.push_back(
          run.step(m, [&](index_t j) { return loss(model, where, before + j); }, {.clip = s.clip}).loss);
      before += m;
    }
    CHECK(largest_relative_difference(losses, alone.losses) < 1e-5);
    CHECK(where.memory().figures().peak <= limit);
  });
}

TEST_CASE("weights are loaded stage by stage, and exported whole") {
  const std::string path = "/tmp/weft_stages_" + std::to_string(::getpid()) + ".safetensors";
  const net whole = large_net(one_thread(), 9);
  io::save(path, state_dict(whole));
  const setting s{.sizes = {.pp = 3}, .schedule = "interleaved:2", .per_rank = {3}};
  run_ranks(3, [&](communicator& ranks) {
    const device where = one_thread();
    net model = large_net(where.deferred(), 7);
    adamw optimizer;
    auto run = bind<plan>(model, optimizer, ranks, mesh_options<plan>(s), stages_of(s));
    run.prepare(loss(model, where, 0), 3);
    load_weights(path, run);
    check_held(run, whole);
    CHECK(elements_of(run.full()) == elements_of(state_dict(whole)));
  });
  std::remove(path.c_str());
}

TEST_CASE("all stages begin with what rank 0 has, tied parameters too, with elements and without") {
  for (const bool deferred : {false, true})
    for (const int copies : {1, 2})
      run_ranks(2 * copies, [&](communicator& ranks) {
        INFO("deferred " << deferred << ", dp " << copies);
        const net whole = large_net(one_thread(), 7);
        using hybrid = policy<strategy::mesh<pp<>, dp>>;
        const device where = one_thread();
        const auto seed = 7 + static_cast<std::uint64_t>(ranks.rank());
        net model = large_net(deferred ? where.deferred() : where, seed);
        adamw optimizer;
        auto run = bind<hybrid>(model, optimizer, ranks, mesh_sizes{.pp = 2, .dp = copies});
        run.prepare(loss(model, where, 0), 2);
        check_held(run, whole);
      });
}

TEST_CASE("every rank gets the value of a statement, wherever it is computed") {
  for (const char* schedule : {"1f1b", "interleaved:2", "breadth-first:3"})
    run_ranks(2, [&](communicator& ranks) {
      INFO(std::string(schedule));
      const device where = one_thread();
      net model = large_net(where, 5);
      adamw optimizer{.lr = 1e-2};
      const setting s{.schedule = schedule};
      const auto tokens = batch_of(3, where, 0);
      context alone(where);
      const context::random_state start = alone.randomness();
      const auto value_of = [&](const auto& e) {
        alone.set_randomness(start);
        return eval(e, alone).to_vector();
      };
      const auto all = value_of(model(tokens)), features = value_of(model.h(model.table(tokens))),
                 embedded = value_of(model.table(tokens));
      auto run = bind<plan>(model, optimizer, ranks, mesh_options<plan>(s), stages_of(s));
      run.prepare(loss(model, where, 0), 4);
      for (int repeat = 0; repeat < 2; ++repeat) {
        run.set_randomness(start);
        CHECK(eval(model(tokens), run).to_vector() == all);
        CHECK(run.eval(model.table(tokens)).to_vector() == embedded);  // the first stage alone
        run.set_randomness(start);
        CHECK(run.eval(model.h(model.table(tokens))).to_vector() == features);
      }
      run.step(4, [&](index_t j) { return loss(model, where, j); });
      CHECK(run.eval(model.table(tokens)).to_vector() != embedded);
    });
}

TEST_CASE("a pipelined GPT: the same tokens are sampled as on one rank") {
  const gpt2::config sizes{.layers = 4, .heads = 2, .width = 16, .context = 12, .vocabulary = 31};
  const auto make = [&](const device& where) {
    auto model = gpt2::model<>::create(sizes, where);
    initialize(model, 4);
    return model;
  };
  const auto sample = [](auto& model, const device& where, const auto& value_of) {
    std::vector<std::int32_t> text{3};
    std::vector<float> seen;
    while (text.size() < 8) {
      const auto n = static_cast<index_t>(text.size());
      tensor<std::int32_t, extents<dyn, dyn>> tokens(shape{2, {1, n}}, where);
      tokens.copy_from(text);
      const std::vector<float> logits = value_of(model(tokens, n)).to_vector();
      const auto last = logits.end() - 31;
      text.push_back(static_cast<std::int32_t>(std::max_element(last, logits.end()) - last));
      seen.insert(seen.end(), last, logits.end());
    }
    return std::pair(text, seen);
  };
  const device here = one_thread();
  auto whole = make(here);
  context alone(here);
  const auto expected = sample(whole, here, [&](const auto& e) { return eval(e, alone); });
  for (const int stages : {2, 4})
    run_ranks(stages, [&](communicator& ranks) {
      const device where = one_thread();
      auto model = make(where);
      adamw optimizer;
      auto run = bind<plan>(model, optimizer, ranks, mesh_sizes{.pp = stages});
      CHECK(sample(model, where, [&](const auto& e) { return run.eval(e); }) == expected);
    });
}
