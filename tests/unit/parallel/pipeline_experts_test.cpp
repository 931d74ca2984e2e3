// SPDX-License-Identifier: MIT
// Mixtures of experts in the blocks of a pipeline, bitwise identical to one rank.
#include "pipelines.hpp"

#include <weft/nn/mixture_of_experts.hpp>

using namespace pipelines;

namespace {

struct sparse_block {
  layer_normalization<6> norm;
  mixture_of_experts<6, feed_forward<6, 7>> moe;
  auto operator()(expression auto x) const {
    auto y = shared(x);
    return y + dropout(moe.with_losses(norm(y), 0.1f, 0.01f), 0.1f);
  }
};

struct sparse_net {
  embedding_table<> table;
  repeat<sparse_block> h;
  layer_normalization<> last;

  static sparse_net create(const device& where) {
    sparse_net n{embedding_table<>::create(11, 6, where), {}, layer_normalization<>::create(6, where)};
    for (int i = 0; i < 4; ++i) {
      n.h.blocks.push_back(
          {{},
           mixture_of_experts<6, feed_forward<6, 7>>::create(6, 3, {.per_row = 2, .capacity_factor = 1},
                                                             [] { return feed_forward<6, 7>(); })});
      to(n.h.blocks.back(), where);
    }
    initialize(n, 5);
    return n;
  }
  auto operator()(expression auto tokens) const {
    return matmul(last(h(table(tokens))), transpose(table.weight));
  }
};

const auto loss = [](const sparse_net& model, const device& where, index_t number) {
  const index_t rows = 3 + number % 4;
  return cross_entropy(model(tokens_of(number, where, 0, rows)), tokens_of(number, where, 1, rows));
};

}  // namespace

TEST_CASE("mixtures of experts on stages: the same bits as on one rank") {
  compare<precision::f32>({.sizes = {.pp = 2}, .schedule = "1f1b"}, sparse_net::create, loss);
  compare<precision::f32>({.sizes = {.pp = 4}, .schedule = "gpipe", .per_rank = {2, 4}, .recompute = 1},
                          sparse_net::create, loss);
  compare<precision::f32>({.sizes = {.pp = 2}, .schedule = "interleaved:2", .deterministic = false},
                          sparse_net::create, loss);
}
