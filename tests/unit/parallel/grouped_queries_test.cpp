// SPDX-License-Identifier: MIT
// Grouped-query attention, sharded over more ranks than there are key heads, or over a number of ranks that
// does not divide the key heads: losses, gradients and parameters equal those of one rank, and each element
// is counted and saved once.
#include <doctest/doctest.h>

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <weft/comm/threads.hpp>
#include <weft/parallel/pipeline.hpp>
#include <weft/parallel/tensor_parallel.hpp>
#include <weft/train/checkpoint.hpp>
#include <weft/weft.hpp>

#include "training.hpp"

using namespace weft;
using namespace training;

namespace {

constexpr index_t B = 2, T = 5, C = 6, V = 11, heads = 12, features = 2;

/// Attention with 12 query heads, which share keys and values in groups.
template <index_t KeyHeads>
struct grouped_attention {
  static constexpr index_t group = heads / KeyHeads;
  linear<C, heads * features, divided::columns<1, group * features, group>> q;
  linear<C, KeyHeads * features, divided::columns<1, features, divided::shared>> k;
  linear<C, 2 * KeyHeads * features, divided::columns<2, features, divided::shared>> v;  // and a gate
  linear<heads * features, C, divided::rows<group * features, group>> out;

  auto operator()(expression auto x) const {
    return let(x, [this](auto h) {
      return let(v(h), [this, h](auto both) {
        const auto values = chunk<-1, 2, 0>(both) * sigmoid(chunk<-1, 2, 1>(both));
        return out(
            flatten<2, 3>(attention<causal>(unflatten<-1>(q(h), heads), unflatten<-1>(k(h) * 1.5f, KeyHeads),
                                            unflatten<-1>(values, KeyHeads))));
      });
    });
  }
};

template <index_t KeyHeads>
struct grouped_block {
  layer_normalization<C> ln;
  grouped_attention<KeyHeads> attn;
  auto operator()(expression auto x) const {
    return let(x, [this](auto h) { return h + attn(ln(h)); });
  }
};

template <index_t KeyHeads>
struct grouped_net {
  embedding_table<V, C, divided::vocabulary> words;
  embedding_table<T, C> positions;
  repeat<grouped_block<KeyHeads>> h;
  layer_normalization<C> last;

  static grouped_net create(const device& where = default_device()) {
    auto n = weft::create<grouped_net>(where);
    for (int b = 0; b < 2; ++b) n.h.blocks.push_back(weft::create<grouped_block<KeyHeads>>(where));
    return n;
  }
  auto operator()(expression auto tokens) const {
    return matmul(last(h(words(tokens) + positions.weight)), transpose(words.weight));
  }
};

using tokens = tensor<std::int32_t, extents<B, T>>;
tokens batch(index_t number, index_t shift) {
  return generate<std::int32_t>(extents<B, T>{}, [=](index_t i) { return (number * 7 + i * 3 + shift) % V; });
}

constexpr index_t total = 4;  // micro-batches of all ranks

/// Takes steps up to `last`. With a folder, resumes from the checkpoint there, and saves the last step.
template <class Plan, index_t KeyHeads>
outcome train(communicator& ranks, const mesh_sizes& sizes, std::int64_t last = 20,
              const std::string& folder = "") {
  auto model = grouped_net<KeyHeads>::create();
  initialize(model, 5);
  sgd optimizer{.lr = 0.1, .momentum = 0.9};
  auto run = bind<Plan>(model, optimizer, ranks, sizes);
  const index_t m = total / sizes.dp / sizes.fsdp;
  run_position at;
  const auto loss = [&](index_t j) {
    const index_t g = at.step * total + run.micro_batch(j, m);
    return cross_entropy(model(batch(g, 0)), batch(g, 1));
  };
  if constexpr (requires { run.prepare(loss, m); }) run.prepare(loss, m);
  std::optional<checkpointer<decltype(run)>> saves;
  if (!folder.empty()) {
    saves.emplace(folder, run, checkpoint_options{});
    at = saves->load().value_or(run_position{});
  }
  outcome o;
  for (; at.step < last; ++at.step) {
    const step_result r = run.step(m, loss, {.clip = 0.5});
    o.losses.push_back(r.loss);
    o.norms.push_back(r.norm);
  }
  if (saves) {
    saves->save(at);
    saves->finish();
  }
  o.parameters = elements_of(run.full());
  return o;
}

void check_same(const outcome& o, const outcome& one) {
  CHECK(largest_relative_difference(o.losses, one.losses) < 1e-5);
  CHECK(largest_relative_difference(o.norms, one.norms) < 1e-4);
  CHECK(largest_difference(o.parameters, one.parameters) < 1e-4);
}
template <class Plan, index_t KeyHeads>
void same_as_one_rank(const outcome& one, const mesh_sizes& sizes) {
  CAPTURE(KeyHeads);
  CAPTURE(to_string(sizes));
  run_ranks(static_cast<int>(sizes.ranks()),
            [&](communicator& ranks) { check_same(train<Plan, KeyHeads>(ranks, sizes), one); });
}

template <index_t KeyHeads>
outcome alone(std::int64_t steps = 20) {
  outcome one;
  run_ranks(
      1, [&](communicator& ranks) { one = train<policy<strategy::mesh<dp>>, KeyHeads>(ranks, {}, steps); });
  CHECK(one.losses.back() < one.losses.front());
  return one;
}

using plan = policy<strategy::mesh<dp, tp<>>>;
template <int Stage>
using sharded = policy<strategy::mesh<fsdp<Stage>, tp<>>>;

}  // namespace

TEST_CASE("3 heads of keys on 2 ranks, 2 on 3 and 4, 1 on 4: training of one rank") {
  same_as_one_rank<plan, 3>(alone<3>(), {.tp = 2});
  const outcome two = alone<2>(), one = alone<1>();
  for (const int n : {1, 2, 3, 4}) same_as_one_rank<plan, 2>(two, {.tp = n});
  same_as_one_rank<plan, 1>(one, {.tp = 4});
  same_as_one_rank<plan, 1>(one, {.dp = 2, .tp = 2});
}

TEST_CASE("heads of several ranks with sharding, stages, and activations divided by positions") {
  const outcome two = alone<2>();
  same_as_one_rank<sharded<1>, 2>(two, {.fsdp = 2, .tp = 3});
  same_as_one_rank<sharded<2>, 2>(two, {.fsdp = 2, .tp = 3});
  same_as_one_rank<sharded<3>, 2>(two, {.fsdp = 2, .tp = 3});
  same_as_one_rank<policy<strategy::mesh<pp<>, tp<>>>, 2>(two, {.pp = 2, .tp = 3});
  same_as_one_rank<policy<strategy::mesh<tp<activations::by_positions>>>, 2>(two, {.tp = 3});
}

TEST_CASE("a checkpoint of one number of ranks is continued by another") {
  const std::string folder = "/tmp/weft_grouped_" + std::to_string(::getpid());
  const outcome one = alone<2>(5);
  int step = 1;
  for (const mesh_sizes& sizes : {mesh_sizes{.tp = 3}, mesh_sizes{.fsdp = 2, .tp = 4}, mesh_sizes{.tp = 2},
                                  mesh_sizes{.fsdp = 2}, mesh_sizes{.fsdp = 2, .tp = 3}}) {
    CAPTURE(step);
    run_ranks(static_cast<int>(sizes.ranks()), [&](communicator& ranks) {
      const outcome o = train<sharded<3>, 2>(ranks, sizes, step, folder);
      const auto at = static_cast<std::size_t>(step - 1);
      CHECK(largest_relative_difference(o.losses, {one.losses[at]}) < 1e-5);
      CHECK(largest_relative_difference(o.norms, {one.norms[at]}) < 1e-4);
      if (step == 5) CHECK(largest_difference(o.parameters, one.parameters) < 1e-4);
    });
    ++step;
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("each element is saved and counted once; a deferred model is created with the bits of the whole") {
  for (const mesh_sizes& sizes : {mesh_sizes{.tp = 3}, mesh_sizes{.fsdp = 2, .tp = 4}}) {
    std::vector<float> whole;
    index_t elements = 0;
    std::atomic<index_t> saved = 0;
    auto model = grouped_net<2>::create();
    initialize(model, 5);
    for (const auto& [name, p] : named_parameters(model)) elements += p->extents.size();
    whole = elements_of(named_parameters(model));
    run_ranks(static_cast<int>(sizes.ranks()), [&](communicator& ranks) {
      for (const bool is_deferred : {false, true}) {
        auto part = grouped_net<2>::create(is_deferred ? default_device().deferred() : default_device());
        initialize(part, 5);
        sgd optimizer;
        auto run = bind<sharded<3>>(part, optimizer, ranks, sizes);
        if (!is_deferred)
          for (const held_tensor& t : run.held_tensors())
            for (const stored_box& b : t.parts) saved += t.saves ? b.where.extents.size() : 0;
        CHECK(elements_of(run.full()) == whole);
      }
    });
    CHECK(saved.load() == elements);
  }
}

TEST_CASE("ranks of one head send the gradients of its keys and values once a step") {
  for (const int n : {2, 4}) {
    index_t sent[2] = {};
    run_ranks(n, [&](communicator& ranks) {
      auto model = grouped_net<1>::create();
      sgd optimizer;
      auto run = bind<plan>(model, optimizer, ranks, {.tp = n});
      for (const index_t m : {1, 3}) {
        const index_t before = payload(run.groups().sharing(1)->sent());
        run.step(m, [&](index_t j) { return cross_entropy(model(batch(j, 0)), batch(j, 1)); });
        std::vector<std::int64_t> all(1, payload(run.groups().sharing(1)->sent()) - before);
        ranks.all_reduce(all).wait();
        if (ranks.rank() == 0) sent[m > 1] = all[0];
      }
    });
    const index_t of_a_block = 3 * features * (C + 1);
    CHECK(sent[0] == 2 * of_a_block * 2 * (n - 1) * static_cast<index_t>(sizeof(float)));
    CHECK(sent[1] == sent[0]);
  }
}

TEST_CASE("more ranks than a head of keys has heads of queries are refused") {
  run_ranks(7, [](communicator& ranks) {
    auto model = grouped_net<4>::create();  // the first key heads have two ranks each, of three query heads
    sgd optimizer;
    CHECK_NOTHROW((void)bind<plan>(model, optimizer, ranks, mesh_sizes{.tp = 7}));
  });
  run_ranks(3, [](communicator& ranks) {
    struct layer {
      linear<C, 4, divided::columns<1, 2, 2>> q;  // 2 key heads, with 2 query heads each
    };
    struct narrow {
      linear<C, 2, divided::columns<1, 2, 2>> q;
    };
    layer fits;
    narrow model;
    sgd optimizer;
    CHECK_NOTHROW((void)bind<plan>(fits, optimizer, ranks, mesh_sizes{.tp = 3}));
    CHECK_THROWS_WITH_AS((void)bind<plan>(model, optimizer, ranks, mesh_sizes{.tp = 3}),
                         doctest::Contains("q.weight of shape [2, 6] cannot be divided among 3 ranks along "
                                           "dim 0 in units of 2 in 2 pieces"),
                         shape_error);
  });
}
