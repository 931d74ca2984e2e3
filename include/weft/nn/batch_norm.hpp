// SPDX-License-Identifier: MIT
// Batch norm, with running statistics for inference.
//
//   struct block {
//     convolution2d_without_bias<64, 64, 3> conv; batch_normalization<64> norm;
//     auto operator()(expression auto x) const { return relu(norm(conv(x))); }
//   };
#pragma once

#include <weft/nn/layers.hpp>
#include <weft/run/batch_statistics.hpp>

namespace weft {

/// Batch norm (Ioffe and Szegedy, 2015) with a weight (initially 1) and a bias (initially 0) per channel, as
/// torch.nn.BatchNorm1d to 3d: x [batch, channels, ...] of f32, bf16 or f16 -> the same shape and dtype.
/// Computed in f32 and rounded once.
///
/// In training it computes (x - mean) / sqrt(variance + epsilon) with the statistics of the batch, and each
/// evaluation moves the running statistics by `momentum`, also an evaluation without a tape, as in PyTorch.
/// Set `training` to false for inference, which uses the running statistics. On several ranks each uses the
/// statistics of its own batch, and a run broadcasts the running statistics of rank 0 after every step
/// (`broadcast_buffers`), as PyTorch's DDP does: the results of a model with batch norm depend on the number
/// of ranks. Throws value_error for a training batch with one element per channel and for a momentum outside
/// [0, 1]; shape_error if x has a different number of channels.
template <index_t C = dyn, class Epsilon = default_epsilon>
struct batch_normalization {
  parameter<extents<C>> weight = detail::parameter_if_static<C>(init::constant(1));
  parameter<extents<C>> bias = detail::parameter_if_static<C>(init::constant(0));
  tensor<float, extents<C>> running_mean = filled_if_static(0);
  tensor<float, extents<C>> running_var = filled_if_static(1);
  tensor<std::int64_t, extents<>> num_batches_tracked = zeros<std::int64_t>(extents<>{});
  double momentum = 0.1;
  bool training = true;

  /// For `channels` channels, on `where`. Throws shape_error if the type has a different static extent.
  static batch_normalization create(index_t channels, const device& where = parameter_device()) {
    const extents<C> e{channels};
    return {make_parameter(e, init::constant(1), where), make_parameter(e, init::constant(0), where),
            zeros<float>(e, where), ones<float>(e, where), zeros<std::int64_t>(extents<>{}, where)};
  }

  auto operator()(expression auto x) const {
    static_assert(decltype(x)::static_shape.order >= 2,
                  "weft: batch_norm: the operand must be [batch, channels, ...]");
    static_assert(compute_type(dtype_of<typename decltype(x)::value_type>) == dtype::f32,
                  "weft: batch_norm: the element type must be f32, bf16 or f16");
    static_assert(C < 0 || decltype(x)::static_shape[1] < 0 || decltype(x)::static_shape[1] == C,
                  "weft: batch_norm: the operand and the layer have different numbers of channels");
    return detail::rounded_once([this](auto of) { return this->normalized(std::move(of)); }, std::move(x));
  }

 private:
  static tensor<float, extents<C>> filled_if_static(float value) {
    if constexpr (C >= 0) return full<float>(extents<C>{}, value);
    else return {};
  }

  template <expression X>
  auto normalized(X x) const {
    using epsilon = attr<number_bits(Epsilon::value)[0]>;
    return let(std::move(x), [&](auto of) {
      return apply<op::batch_norm, epsilon>(
          of,
          batch_statistics_node<decltype(of), C>{
              {}, of, {running_mean, running_var, num_batches_tracked, momentum}, training},
          weight, bias);
    });
  }
};

}  // namespace weft
