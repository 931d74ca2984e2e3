// SPDX-License-Identifier: MIT
// Stages whose ranks divide layers: the training of one rank, up to the order of sums.
#include <weft/parallel/pipeline.hpp>
#include <weft/parallel/tensor_parallel.hpp>

#include "training.hpp"

using namespace training;

namespace {

/// Hidden features and words that do not divide evenly.
constexpr index_t B = 2, T = 5, C = 6, V = 11, hidden = 7;

struct layers_block {
  layer_normalization<C> ln_1, ln_2;
  causal_self_attention<C> attn;
  feed_forward<C, hidden> mlp;
  auto operator()(expression auto x) const {
    return let(x, [this](auto h) {
      return let(h + attn(ln_1(h)), [this](auto y) { return y + dropout(mlp(ln_2(y)), 0.1f); });
    });
  }
};

struct layers_net {
  embedding_table<V, C, divided::vocabulary> words;
  repeat<layers_block> h;
  layer_normalization<C> last;

  static layers_net create() {
    layers_net n;
    n.h.blocks.resize(4);
    for (layers_block& b : n.h.blocks) b.attn.heads = 6;
    return n;
  }
  auto operator()(expression auto tokens) const {
    return matmul(last(h(words(tokens))), transpose(words.weight));
  }
};

auto words_of(index_t number, index_t shift) {
  return generate<std::int32_t>(extents<B, T>{}, [=](index_t i) { return (number * 7 + i * 3 + shift) % V; });
}

template <class Plan>
outcome train_layers(const mesh_sizes& sizes) {
  constexpr index_t total = 4;
  std::vector<outcome> all(static_cast<std::size_t>(sizes.ranks()));
  run_ranks(static_cast<int>(sizes.ranks()), [&](communicator& ranks) {
    layers_net model = layers_net::create();
    initialize(model, 5);
    adamw optimizer{.lr = 1e-2};
    auto run = bind<Plan>(model, optimizer, ranks, sizes);
    run.seed = 3;
    outcome& o = all[static_cast<std::size_t>(ranks.rank())];
    const index_t m = total / sizes.dp / sizes.fsdp;
    for (int s = 0; s < 3; ++s) {
      const step_result r = run.step(m,
                                     [&](index_t j) {
                                       const index_t g = s * total + run.micro_batch(j, m);
                                       return cross_entropy(model(words_of(g, 0)), words_of(g, 1));
                                     },
                                     {.clip = 0.5});
      o.losses.push_back(r.loss);
      o.norms.push_back(r.norm);
    }
    o.parameters = elements_of(run.full());
  });
  for (const outcome& o : all) {
    CHECK(o.losses == all[0].losses);
    CHECK(o.norms == all[0].norms);
    CHECK(o.parameters == all[0].parameters);
  }
  return all[0];
}

}  // namespace

TEST_CASE("pipelines of divided layers train as one rank does") {
  using plan = policy<strategy::mesh<pp<>, dp, tp<>>>;
  using zero_bubble = policy<strategy::mesh<pp<pipeline::zb_h1>, fsdp<3>, tp<>>>;
  const outcome one = train_layers<plan>({});
  const auto compare = [&](const outcome& o) {
    CHECK(largest_relative_difference(o.losses, one.losses) < 1e-5);
    CHECK(largest_relative_difference(o.norms, one.norms) < 1e-4);
  };
  for (const mesh_sizes& sizes :
       {mesh_sizes{.tp = 2}, mesh_sizes{.pp = 2, .tp = 2}, mesh_sizes{.pp = 4, .tp = 2},
        mesh_sizes{.pp = 2, .tp = 3}, mesh_sizes{.pp = 2, .dp = 2, .tp = 2}}) {
    INFO(to_string(sizes));
    compare(train_layers<plan>(sizes));
  }
  for (const mesh_sizes& sizes : {mesh_sizes{.pp = 2, .tp = 2}, mesh_sizes{.pp = 2, .fsdp = 2, .tp = 2}}) {
    INFO("zero bubble, ZeRO 3, " << to_string(sizes));
    compare(train_layers<zero_bubble>(sizes));
  }
}
