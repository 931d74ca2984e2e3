// SPDX-License-Identifier: MIT
// Llama (Touvron et al., 2023; Llama 2 to 3.2) with the names of Hugging Face's weights, which load
// unchanged:
//
//   auto model = llama::causal_lm<>::create({.layers = 16, .heads = 32, .key_heads = 8, .width = 2048, ...});
//   weft::io::load("model.safetensors", weft::state_dict(model), {.convert = true});     // bf16 to f32
//   auto logits = weft::eval(model(tokens));                                  // [B, T] -> [B, T, V]
//
//   llama::decoding next(model);                              // keeps keys and values of earlier positions
//   auto logits = next(prompt);                               // [B, T] -> [B, V], of the last position
//   logits = next(weft::eval(weft::cast<std::int32_t>(weft::argmax<1>(logits, weft::keepdim))));
//
// Llama 3.2 1B: causal_lm<500'000, weft::per_million<10>, weft::rope_scaling{.factor = 32}>. Comments name
// dims: B sequences, T positions, C features.
#pragma once

#include <optional>

#include <weft/weft.hpp>

namespace llama {

using weft::dyn;
using weft::expression;
using weft::index_t;
using weft::linear_without_bias;

/// Sizes, in config.json: num_hidden_layers, num_attention_heads, num_key_value_heads, hidden_size,
/// intermediate_size, vocab_size, head_dim (0: width / heads), tie_word_embeddings.
struct config {
  index_t layers = 2, heads = 4, key_heads = 2, width = 64, hidden = 128, vocabulary = 256, features = 0;
  bool tied = false;

  index_t of_head() const { return features ? features : width / heads; }
};

/// `Base`: rope_theta.
template <index_t Base, weft::rope_scaling Scaling>
struct attention {
  linear_without_bias<> q_proj, k_proj, v_proj, o_proj;
  index_t heads, key_heads;

  auto operator()(expression auto x_BTC) const {
    return let(x_BTC, [this](auto x) {
      return result(weft::attention<weft::causal>(queries(x), keys(x), values(x)));
    });
  }

  // The parts of attention. `first`: the index of the first position, if it is not 0.
  auto queries(expression auto x_BTC, auto... first) const {
    return weft::rotary<Base, Scaling>(weft::unflatten<-1>(q_proj(x_BTC), heads), first...);
  }
  auto keys(expression auto x_BTC, auto... first) const {
    return weft::rotary<Base, Scaling>(weft::unflatten<-1>(k_proj(x_BTC), key_heads), first...);
  }
  auto values(expression auto x_BTC) const { return weft::unflatten<-1>(v_proj(x_BTC), key_heads); }
  auto result(expression auto y_BTHD) const { return o_proj(weft::flatten<2, 3>(y_BTHD)); }
};

struct mlp {
  linear_without_bias<> gate_proj, up_proj, down_proj;

  auto operator()(expression auto x_BTC) const {
    return down_proj(let(x_BTC, [this](auto x) { return weft::silu(gate_proj(x)) * up_proj(x); }));
  }
};

/// `Epsilon`: rms_norm_eps.
template <index_t Base, class Epsilon, weft::rope_scaling Scaling>
struct block {
  weft::rms_normalization<dyn, Epsilon> input_layernorm;
  attention<Base, Scaling> self_attn;
  weft::rms_normalization<dyn, Epsilon> post_attention_layernorm;
  llama::mlp mlp;

  auto operator()(expression auto x_BTC) const {
    return let(x_BTC, [this](auto x) {
      return let(x + self_attn(input_layernorm(x)),
                 [this](auto h) { return h + mlp(post_attention_layernorm(h)); });
    });
  }
};

template <index_t Base, class Epsilon, weft::rope_scaling Scaling>
struct decoder {
  weft::embedding_table<> embed_tokens;
  weft::repeat<block<Base, Epsilon, Scaling>> layers;
  weft::rms_normalization<dyn, Epsilon> norm;
};

template <index_t Base = 10'000, class Epsilon = weft::per_million<10>,
          weft::rope_scaling Scaling = weft::rope_scaling{}>
struct causal_lm {
  decoder<Base, Epsilon, Scaling> model;
  std::optional<linear_without_bias<>> lm_head;  // none: tied to the embedding's weight

  static causal_lm create(const config& c, const weft::device& where = weft::default_device()) {
    const auto norm = [&] { return weft::rms_normalization<dyn, Epsilon>::create(c.width, where); };
    const auto linear = [&](index_t in, index_t out) {
      return linear_without_bias<>::create(in, out, where);
    };
    const index_t queries = c.heads * c.of_head(), keys = c.key_heads * c.of_head();
    causal_lm m{{weft::embedding_table<>::create(c.vocabulary, c.width, where), {}, norm()}, {}};
    for (index_t l = 0; l < c.layers; ++l)
      m.model.layers.blocks.push_back(
          {norm(),
           {linear(c.width, queries), linear(c.width, keys), linear(c.width, keys), linear(queries, c.width),
            c.heads, c.key_heads},
           norm(),
           {linear(c.width, c.hidden), linear(c.width, c.hidden), linear(c.hidden, c.width)}});
    if (!c.tied) m.lm_head = linear(c.width, c.vocabulary);
    return m;
  }

  /// Logits [B, T, V] of the next token at each position of tokens [B, T].
  auto operator()(expression auto tokens_BT) const {
    return logits(model.layers(model.embed_tokens(tokens_BT)));
  }
  /// The logits for the last block's output `x` [..., C].
  auto logits(expression auto x) const {
    return matmul(model.norm(x), weft::transpose(lm_head ? lm_head->weight : model.embed_tokens.weight));
  }
};

/// Decodes token by token: keys and values of earlier positions are cached, and a call computes only the new
/// positions. The model and the context must outlive it.
template <index_t Base, class Epsilon, weft::rope_scaling Scaling>
class decoding {
 public:
  using tokens = weft::tensor<std::int32_t, weft::extents<dyn, dyn>>;

  explicit decoding(const causal_lm<Base, Epsilon, Scaling>& model,
                    weft::context& c = weft::default_context())
      : model_(model), context_(c), kept_(model.model.layers.blocks.size()) {}

  /// Appends the tokens `added` [B, T] to those of earlier calls and returns the logits [B, V] of the next
  /// token. Throws shape_error if B differs from that of the first call, value_error if T is 0.
  weft::tensor<float, weft::extents<dyn, dyn>> operator()(const tokens& added) {
    const index_t first = positions_, count = added.extents()[1], all = first + count;
    states x = of(model_.model.embed_tokens(added));
    for (std::size_t l = 0; l < kept_.size(); ++l) {
      const auto& [norm, attention, feed_norm, feed] = model_.model.layers.blocks[l];
      auto& [keys, values] = kept_[l];
      const states h = of(norm(x));
      keep(keys, attention.keys(h, first), count);
      keep(values, attention.values(h), count);
      x = of(x + attention.result(weft::attention<weft::causal>(attention.queries(h, first),
                                                                weft::slice<1>(keys, 0, all),
                                                                weft::slice<1>(values, 0, all), first)));
      x = of(x + feed(feed_norm(x)));
    }
    const auto logits = of(model_.logits(weft::select<1>(x, count - 1)));
    positions_ = all;
    return logits;
  }
  /// The number of cached positions.
  index_t positions() const { return positions_; }

 private:
  using states = weft::tensor<float, weft::extents<dyn, dyn, dyn>>;  // [B, T, C]
  using cache =
      weft::tensor<float, weft::extents<dyn, dyn, dyn, dyn>>;  // [B, positions, key heads, features]

  auto of(const expression auto& e) { return weft::eval(e, context_); }

  /// Appends `count` positions to a cache, which doubles its size when it is full.
  void keep(cache& all, const expression auto& added, index_t count) {
    if (positions_ == 0) {
      all = of(added);
      return;
    }
    while (positions_ + count > all.extents()[1]) all = of(weft::concat<1>(all, weft::zeros_like(all)));
    update(weft::slice<1>(all, positions_, positions_ + count), added, context_);
  }

  const causal_lm<Base, Epsilon, Scaling>& model_;
  weft::context& context_;
  std::vector<std::pair<cache, cache>> kept_;  // keys and values of each block
  index_t positions_ = 0;
};

}  // namespace llama
