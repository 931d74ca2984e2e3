// SPDX-License-Identifier: MIT
// Equal blocks applied one after the other, compiled once.
//
// Applying a `repeat` to an expression gives a node that marks a program boundary: evaluation runs what comes
// before as one program, then the program of the block once per block, then continues with the result.
// Compile time and code size do not grow with depth, and a tape keeps one entry per block.
//
//   repeat<block> h{12 blocks};
//   auto y = ln_f(h(x));
#pragma once

#include <vector>

#include <weft/run/boundary.hpp>

namespace weft {

/// Applies `blocks` in order; each must keep shape and dtype: [...] -> [...]. Names are those of
/// torch.nn.ModuleList: "0.weight", "1.weight", ... A block is called with a tensor, the value of the block
/// before it. The blocks must not be moved or destroyed before the expression is evaluated. Throws
/// shape_error if a block changes a dyn extent.
template <class Block>
struct repeat {
  std::vector<Block> blocks;

  std::vector<Block>& children() { return blocks; }
  const std::vector<Block>& children() const { return blocks; }

  template <expression X>
  auto operator()(X x) const {
    return boundary_node<Block, X>{{}, weft::detail::as_written(std::move(x)), &blocks};
  }
};

}  // namespace weft
