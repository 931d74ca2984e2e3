// SPDX-License-Identifier: MIT
// What a rank holds of the model: for each parameter and buffer a box, all of it, or nothing.
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
/// The shape of a tensor as divided into rows: a scalar is one row of one element.
inline shape in_rows(const shape& whole) { return whole.order > 0 ? whole : shape{1, {1}}; }
}  // namespace parallel

/// What a rank holds of a parameter or buffer. All ranks have the same list, in the order of the model, also
/// of tensors that are on other ranks only.
struct held_tensor {
  std::string name;
  tensor_spec whole;                    // of all ranks together
  box part;                             // of in_rows(whole.extents)
  std::shared_ptr<tensor_state> local;  // the elements of `part`; null if this rank has no part of the tensor
  bool saves = false;      // whether this rank writes `part`: of each element one of its ranks does
  bool is_buffer = false;  // not changed by optimizers, but possibly by forward passes
};

}  // namespace weft
