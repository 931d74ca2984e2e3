// SPDX-License-Identifier: MIT
// The part of the model that a rank holds: of each parameter and buffer some boxes, all of it, or nothing.
//
// Checkpoints and weight files are written and read by these boxes only, independently of the strategy.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <weft/shape/box.hpp>
#include <weft/tensor/state.hpp>

namespace weft {

namespace parallel {
/// Used as the rank that holds a tensor if all ranks hold it.
inline constexpr int every_rank = -1;

/// The shape of a tensor divided into rows, where a scalar is one row of one element.
inline shape in_rows(const shape& whole) { return whole.order > 0 ? whole : shape{1, {1}}; }

/// The boxes of a tensor of shape `whole` that consist of rows `first`, ... of the part of rank `rank` of
/// `ranks`, and their places in the tensor of these rows, of shape `local`. Several boxes if the dim is
/// divided in groups.
[[gnu::cold]] std::vector<stored_box> boxes_of_part(const shape& whole, const placement& p, int ranks,
                                                    int rank, index_t first, const shape& local);
}  // namespace parallel

/// The part of a parameter or buffer that a rank holds. All ranks list the same tensors in the order of the
/// model, including those that are on other ranks only.
struct held_tensor {
  std::string name;
  tensor_spec whole;                    // the complete tensor
  std::vector<stored_box> parts;        // boxes of in_rows(whole.extents), and their places in `local`
  std::shared_ptr<tensor_state> local;  // elements of `parts`; null if this rank has none
  bool saves = false;      // whether this rank writes its parts: exactly one rank writes each element
  bool is_buffer = false;  // not changed by optimizers, but possibly by forward passes
};

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/held_tensor.ipp>
#endif
