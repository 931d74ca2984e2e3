// SPDX-License-Identifier: MIT
// Llama (Touvron et al., 2023; Llama 2 and 3) with the names of Hugging Face's weights, which load as they
// are:
//
//   auto model = llama::causal_lm<>::create({.layers = 16, .heads = 32, .key_heads = 8, .width = 2048, ...});
//   weft::io::load("model.safetensors", weft::state_dict(model), {.convert = true});     // bf16 to f32
//
// Comments name dims: B sequences, T positions, C features. Not here: the scaling of rotary positions of
// Llama 3.1 and later for more than 8192 positions.
#pragma once

#include <optional>

#include <weft/weft.hpp>

namespace llama {

using weft::dyn;
using weft::expression;
using weft::index_t;
using weft::linear_without_bias;

/// Sizes, as config.json has them: num_hidden_layers, num_attention_heads, num_key_value_heads, hidden_size,
/// intermediate_size, vocab_size, head_dim (0: width / heads), tie_word_embeddings.
struct config {
  index_t layers = 2, heads = 4, key_heads = 2, width = 64, hidden = 128, vocabulary = 256, features = 0;
  bool tied = false;

  index_t of_head() const { return features ? features : width / heads; }
};

/// `Base`: rope_theta.
template <index_t Base>
struct attention {
  linear_without_bias<> q_proj, k_proj, v_proj, o_proj;
  index_t heads, key_heads;

  auto operator()(expression auto x_BTC) const {
    return o_proj(let(x_BTC, [this](auto x) {
      const auto q = weft::unflatten<-1>(q_proj(x), heads), k = weft::unflatten<-1>(k_proj(x), key_heads),
                 v = weft::unflatten<-1>(v_proj(x), key_heads);
      return weft::flatten<2, 3>(
          weft::attention<weft::causal>(weft::rotary<Base>(q), weft::rotary<Base>(k), v));
    }));
  }
};

struct mlp {
  linear_without_bias<> gate_proj, up_proj, down_proj;

  auto operator()(expression auto x_BTC) const {
    return down_proj(let(x_BTC, [this](auto x) { return weft::silu(gate_proj(x)) * up_proj(x); }));
  }
};

/// `Epsilon`: rms_norm_eps.
template <index_t Base, class Epsilon>
struct block {
  weft::rms_normalization<dyn, Epsilon> input_layernorm;
  attention<Base> self_attn;
  weft::rms_normalization<dyn, Epsilon> post_attention_layernorm;
  llama::mlp mlp;

  auto operator()(expression auto x_BTC) const {
    return let(x_BTC, [this](auto x) {
      return let(x + self_attn(input_layernorm(x)),
                 [this](auto h) { return h + mlp(post_attention_layernorm(h)); });
    });
  }
};

template <index_t Base, class Epsilon>
struct decoder {
  weft::embedding_table<> embed_tokens;
  weft::repeat<block<Base, Epsilon>> layers;
  weft::rms_normalization<dyn, Epsilon> norm;
};

template <index_t Base = 10'000, class Epsilon = weft::per_million<10>>
struct causal_lm {
  decoder<Base, Epsilon> model;
  std::optional<linear_without_bias<>> lm_head;  // none: the embedding's own weight

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

  /// Logits [B, T, V] of the next tokens, for tokens [B, T].
  auto operator()(expression auto tokens_BT) const {
    const auto& head = lm_head ? lm_head->weight : model.embed_tokens.weight;
    return matmul(model.norm(model.layers(model.embed_tokens(tokens_BT))), weft::transpose(head));
  }
};

}  // namespace llama
