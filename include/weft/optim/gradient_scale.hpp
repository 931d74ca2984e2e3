// SPDX-License-Identifier: MIT
// The factor by which an update multiplies all gradients: a number known to the host, or one in device memory
// that the host has not read.
//
//   optimizer.step(model, 1.0 / micro_batches);
#pragma once

#include <utility>

#include <weft/tensor/create.hpp>

namespace weft {

/// A factor on gradients, as a tensor of the type in which an update is computed.
class gradient_scale {
 public:
  gradient_scale(double value) : value_(value) {}
  /// A number in device memory, rounded to f32 and in f64.
  gradient_scale(tensor<float, extents<>> rounded, tensor<double, extents<>> exact)
      : rounded_(rounded.state()), exact_(exact.state()) {}

  /// The factor on the device `where`, cached there for the next parameter.
  template <element T>
  tensor<T, extents<>> as(const device& where) {
    std::shared_ptr<tensor_state>& kept = std::is_same_v<T, double> ? exact_ : rounded_;
    if (!kept) kept = full<T>(extents<>{}, static_cast<T>(value_), where).state();
    if (!(kept->where == where)) kept = tensor<T, extents<>>(kept).to(where).state();
    return tensor<T, extents<>>(kept);
  }

 private:
  double value_ = 1;
  std::shared_ptr<tensor_state> rounded_, exact_;
};

}  // namespace weft
