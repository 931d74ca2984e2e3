// SPDX-License-Identifier: MIT
// What a rank holds of the model: for each parameter and buffer boxes, all of it, or nothing.
//
// Checkpoints and weight files are written and read by these boxes alone, whatever strategy made them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <weft/shape/box.hpp>
#include <weft/tensor/state.hpp>

namespace weft {

namespace parallel {
/// In the place of the rank that holds a tensor, for one that all ranks hold.
inline constexpr int every_rank = -1;

/// The shape of a tensor as divided into rows: a scalar is one row of one element.
inline shape in_rows(const shape& whole) { return whole.order > 0 ? whole : shape{1, {1}}; }

/// The boxes of a tensor of shape `whole` that are rows `first`, ... of the part that rank `rank` of `ranks`
/// has, and where they are in a tensor of these rows, of shape `local`. Several if the dim is divided in
/// groups.
[[gnu::cold]] std::vector<stored_box> boxes_of_part(const shape& whole, const placement& p, int ranks,
                                                    int rank, index_t first, const shape& local);
}  // namespace parallel

/// What a rank holds of a parameter or buffer. All ranks have the same list, in the order of the model, also
/// of tensors that are on other ranks only.
struct held_tensor {
  std::string name;
  tensor_spec whole;                    // of all ranks together
  std::vector<stored_box> parts;        // of in_rows(whole.extents), and where they are in `local`
  std::shared_ptr<tensor_state> local;  // their elements; null if this rank has no part of the tensor
  bool saves = false;      // whether this rank writes its parts: of each element one of the ranks does
  bool is_buffer = false;  // not changed by optimizers, but possibly by forward passes
};

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/held_tensor.ipp>
#endif
