// SPDX-License-Identifier: MIT
// A transformer whose layers can be sharded.
#pragma once

#include <weft/weft.hpp>

namespace divided_model {

using namespace weft;

/// 11 words and 7 hidden features do not divide evenly among 2 or 3 ranks; the 6 heads do.
inline constexpr index_t B = 2, T = 5, C = 6, V = 11, hidden = 7;

struct block {
  layer_normalization<C> ln_1, ln_2;
  causal_self_attention<C> attn;
  feed_forward<C, hidden> mlp;
  auto operator()(expression auto x) const {
    return let(x, [this](auto h) {
      return let(h + attn(ln_1(h)), [this](auto y) { return y + dropout(mlp(ln_2(y)), 0.1f); });
    });
  }
};

struct net {
  embedding_table<V, C, divided::vocabulary> words;
  embedding_table<T, C> positions;
  repeat<block> h;
  layer_normalization<C> last;

  static net create(std::size_t blocks) {
    net n;
    n.h.blocks.resize(blocks);
    for (block& b : n.h.blocks) b.attn.heads = 6;
    return n;
  }
  auto operator()(expression auto tokens) const {
    return matmul(last(h(words(tokens) + positions.weight)), transpose(words.weight));
  }
};

using tokens = tensor<std::int32_t, extents<B, T>>;
inline tokens batch(index_t number, index_t shift) {
  return generate<std::int32_t>(extents<B, T>{}, [=](index_t i) { return (number * 7 + i * 3 + shift) % V; });
}

}  // namespace divided_model
