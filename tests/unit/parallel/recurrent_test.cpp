// SPDX-License-Identifier: MIT
// Recurrent layers before, in and after the blocks of a pipeline, with replicated and sharded parameters:
// bitwise identical to one rank.
#include "pipelines.hpp"

using namespace pipelines;

namespace {

struct recurrent_block {
  layer_normalization<6> norm;
  lstm<6, 6> memory;
  auto operator()(expression auto x) const {
    auto y = shared(x);
    return y + memory(norm(y));
  }
};
struct plain_block {
  layer_normalization<6> norm;
  linear<6, 6> map;
  auto operator()(expression auto x) const {
    auto y = shared(x);
    return y + map(norm(y));
  }
};

template <class Block>
struct recurrent_net {
  embedding_table<> table;
  gru<6, 6> first;
  repeat<Block> h;
  lstm<6, 5> last;
  linear<5, 11> head;

  static recurrent_net create(const device& where) {
    recurrent_net n{embedding_table<>::create(11, 6, where), {}, {}, {}, {}};
    n.h.blocks.resize(3);
    to(n, where);
    initialize(n, 5);
    return n;
  }
  auto operator()(expression auto tokens) const {  // one sequence
    return head(flatten<0, 1>(last(h(first(unsqueeze<1>(table(tokens)))))));
  }
};

const auto loss = [](const auto& model, const device& where, index_t number) {
  const index_t rows = 3 + number % 4;
  return cross_entropy(model(tokens_of(number, where, 0, rows)), tokens_of(number, where, 1, rows));
};

}  // namespace

TEST_CASE("recurrent layers on stages: the same bits as on one rank") {
  compare<precision::f32>({.sizes = {.pp = 2}, .schedule = "1f1b", .per_rank = {2, 4}, .recompute = 1},
                          recurrent_net<recurrent_block>::create, loss);
}

TEST_CASE("recurrent layers outside of blocks are gathered once, whatever the lengths on the ranks") {
  compare<precision::f32, fsdp<3>>({.sizes = {.pp = 2, .fsdp = 2}, .per_rank = {2, 4}},
                                   recurrent_net<plain_block>::create, loss);
}
