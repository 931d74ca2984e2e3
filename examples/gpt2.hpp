// SPDX-License-Identifier: MIT
// GPT-2 (Radford et al., 2019) with the names and layouts of Hugging Face's weights.
//
// Sizes are template arguments: dyn if they are given at run time, as in train_gpt; numbers in static_gpt.
// Shapes: B batch, T positions, C features, V vocabulary.
#pragma once

#include <cmath>

#include <weft/nn/layers.hpp>
#include <weft/nn/linear_cross_entropy.hpp>
#include <weft/nn/repeat.hpp>

namespace gpt2 {

using weft::causal;
using weft::device;
using weft::dyn;
using weft::expression;
using weft::extents;
using weft::index_t;
using weft::parameter;
namespace divided = weft::divided;

struct config {
  index_t layers = 4, heads = 4, width = 128, context = 64, vocabulary = 256;
  index_t experts = 0, experts_per_token = 0;  // for gpt2_experts.hpp
  double capacity_factor = 0;                  // of an expert; 0: no token is dropped
};

/// x W + b with W [In, Out], the layout in GPT-2's files. `Division`: how ranks may shard it.
template <index_t In, index_t Out, class Division>
struct projection {
  parameter<extents<In, Out>, float, typename Division::template weight<1, 0>> weight;
  parameter<extents<Out>, float, typename Division::bias> bias;

  static projection create(index_t in, index_t out, double deviation, const device& where) {
    return {weft::make_parameter(extents<In, Out>{in, out}, weft::init::normal(deviation), where),
            weft::make_parameter(extents<Out>{out}, weft::init::constant(0), where)};
  }
  auto operator()(expression auto x) const { return matmul(x, weight) + bias; }
};

constexpr index_t times(index_t n, index_t width) { return width == dyn ? dyn : n * width; }

template <index_t C, index_t Heads>
struct attention {
  projection<C, times(3, C), divided::columns<3>> c_attn;
  projection<C, C, divided::rows<>> c_proj;
  index_t heads;

  auto operator()(expression auto x_BTC) const {
    return c_proj(let(c_attn(x_BTC), [n = heads](auto qkv) {
      return weft::flatten<2, 3>(weft::attention<causal>(by_head(weft::chunk<-1, 3, 0>(qkv), n),
                                                         by_head(weft::chunk<-1, 3, 1>(qkv), n),
                                                         by_head(weft::chunk<-1, 3, 2>(qkv), n)));
    }));
  }

 private:
  /// [B, T, C] -> [B, T, heads, C / heads].
  static auto by_head(expression auto part, [[maybe_unused]] index_t heads) {
    if constexpr (Heads == dyn) return weft::unflatten<-1>(part, heads);
    else return weft::unflatten<-1, Heads>(part);
  }
};

template <index_t C>
struct mlp {
  projection<C, times(4, C), divided::columns<>> c_fc;
  projection<times(4, C), C, divided::rows<>> c_proj;

  /// `deviation` and `residual`: standard deviations of the initial weights of the first and the last layer.
  static mlp create(const config& c, double deviation, double residual, const device& where) {
    return {decltype(c_fc)::create(c.width, 4 * c.width, deviation, where),
            decltype(c_proj)::create(4 * c.width, c.width, residual, where)};
  }
  auto operator()(expression auto x) const { return c_proj(gelu_tanh(c_fc(x))); }
};

/// `Feed`: the module after attention.
template <index_t C, index_t Heads, class Feed = mlp<C>>
struct block {
  weft::layer_normalization<C> ln_1;
  attention<C, Heads> attn;
  weft::layer_normalization<C> ln_2;
  Feed mlp;

  auto operator()(expression auto x_BTC) const {
    return let(x_BTC + attn(ln_1(x_BTC)), [this](auto h) { return h + mlp(ln_2(h)); });
  }
};

template <index_t C = dyn, index_t Heads = dyn, index_t V = dyn, index_t T = dyn, class Feed = mlp<C>>
struct model {
  weft::embedding_table<V, C, divided::vocabulary> wte;
  weft::embedding_table<T, C> wpe;
  weft::repeat<block<C, Heads, Feed>> h;
  weft::layer_normalization<C> ln_f;

  static model create(const config& c, const device& where = weft::default_device()) {
    const double deviation = 0.02;
    const double residual = deviation / std::sqrt(2.0 * static_cast<double>(c.layers));
    model m{decltype(wte)::create(c.vocabulary, c.width, where),
            weft::embedding_table<T, C>::create(c.context, c.width, where),
            {},
            weft::layer_normalization<C>::create(c.width, where)};
    m.wte.weight.state()->init = weft::init::normal(deviation);
    m.wpe.weight.state()->init = weft::init::normal(deviation);
    const index_t w = c.width;
    for (index_t l = 0; l < c.layers; ++l)
      m.h.blocks.push_back({weft::layer_normalization<C>::create(w, where),
                            {decltype(attention<C, Heads>::c_attn)::create(w, 3 * w, deviation, where),
                             decltype(attention<C, Heads>::c_proj)::create(w, w, residual, where), c.heads},
                            weft::layer_normalization<C>::create(w, where),
                            Feed::create(c, deviation, residual, where)});
    return m;
  }

  /// Logits [B, T, V] for tokens [B, T]; the head is tied to the embedding's weight. `positions`: the number
  /// T of positions, or the positions [T] of this rank's tokens if other ranks have the other positions.
  auto operator()(expression auto tokens_BT, const auto& positions) const {
    return matmul(features(tokens_BT, positions), transpose(wte.weight));
  }
  /// The same, for all positions of a static context.
  auto operator()(expression auto tokens_BT) const
    requires(T != dyn)
  {
    return matmul(ln_f(h(wte(tokens_BT) + wpe.weight)), transpose(wte.weight));
  }

  /// Mean cross-entropy of the logits against labels [B, T]; never holds all logits at once.
  auto loss(expression auto tokens_BT, expression auto labels_BT, const auto& positions) const {
    return linear_cross_entropy(features(tokens_BT, positions), wte.weight, labels_BT);
  }

 private:
  /// The input of the head: [B, T, C].
  auto features(expression auto tokens_BT, const auto& positions) const {
    if constexpr (expression<decltype(positions)>) return ln_f(h(wte(tokens_BT) + wpe(positions)));
    else return ln_f(h(wte(tokens_BT) + weft::slice<0>(wpe.weight, 0, positions)));
  }
};

}  // namespace gpt2
