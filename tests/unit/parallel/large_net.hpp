// SPDX-License-Identifier: MIT
// A model of 48 blocks that exceeds the memory of a limited device.
#pragma once

#include "training.hpp"

namespace training {

inline constexpr net_sizes large{64, 64, 128};
inline constexpr int large_blocks = 48;

inline net large_net(const device& where, std::uint64_t seed) {
  net model = net::create(where, large);
  while (model.h.blocks.size() < large_blocks)
    model.h.blocks.push_back({layer_normalization<>::create(large.width, where),
                              linear<>::create(large.width, large.hidden, where),
                              linear<>::create(large.hidden, large.width, where)});
  initialize(model, seed);
  return model;
}

}  // namespace training
