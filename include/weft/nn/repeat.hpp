// SPDX-License-Identifier: MIT
// Equal blocks one after the other, compiled once.
//
// Applying a `repeat` to an expression gives a node that marks a boundary: evaluation ends a
// program there, runs the block's program once for each block, and goes on with its result.
// Compile time and code do not grow with depth, and a tape keeps one entry a block.
//
//   repeat<block> h{12 blocks};
//   auto y = ln_f(h(x));
#pragma once

#include <vector>

#include <weft/run/boundary.hpp>

namespace weft {

template <class Block>
struct repeat {
  std::vector<Block> blocks;

  std::vector<Block>& children() { return blocks; }
  const std::vector<Block>& children() const { return blocks; }

  template <expression X>
  auto operator()(X x) const {
    return boundary_node<Block, X>{{}, std::move(x), &blocks};
  }
};

}  // namespace weft
