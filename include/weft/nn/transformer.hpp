// SPDX-License-Identifier: MIT
// The two halves of a transformer block (Vaswani et al., 2017). Shapes: B batch, T positions, C features.
#pragma once

#include <weft/nn/layers.hpp>

namespace weft {

/// Causal self-attention with `heads` heads: each position attends to itself and to earlier ones. One linear
/// map computes queries, keys and values, another one the result. [B, T, C] -> [B, T, C]. Ranks may divide
/// the heads.
template <index_t C = dyn>
struct causal_self_attention {
  static constexpr index_t three = C == dyn ? dyn : 3 * C;
  linear<C, three, divided::columns<3>> qkv;
  linear<C, C, divided::rows<>> out;
  index_t heads = 1;

  /// Throws value_error unless `heads` divides `features`.
  static causal_self_attention create(index_t features, index_t heads,
                                      const device& where = parameter_device()) {
    if (heads < 1 || features % heads)
      refuse<value_error>({"weft: causal_self_attention: ", heads, " heads do not divide ", features,
                           " features"});
    return {decltype(qkv)::create(features, 3 * features, where),
            decltype(out)::create(features, features, where), heads};
  }

  auto operator()(expression auto x_BTC) const {
    return out(let(qkv(x_BTC), [n = heads](auto all) {
      return flatten<2, 3>(attention<causal>(unflatten<-1>(chunk<-1, 3, 0>(all), n),
                                             unflatten<-1>(chunk<-1, 3, 1>(all), n),
                                             unflatten<-1>(chunk<-1, 3, 2>(all), n)));
    }));
  }
};

/// Two linear maps with a GELU between them, applied to each position. [..., C] -> [..., C].
/// Ranks may divide the hidden features.
template <index_t C = dyn, index_t Hidden = dyn>
struct feed_forward {
  linear<C, Hidden, divided::columns<>> in;
  linear<Hidden, C, divided::rows<>> out;

  /// For `features` features and `hidden` hidden ones, on `where`.
  static feed_forward create(index_t features, index_t hidden, const device& where = parameter_device()) {
    return {decltype(in)::create(features, hidden, where), decltype(out)::create(hidden, features, where)};
  }
  auto operator()(expression auto x) const { return out(gelu(in(x))); }
};

}  // namespace weft
