// SPDX-License-Identifier: MIT
// What products are computed in: part of the policy that a model meets when it is bound.
//
//   using plan = policy<precision::bf16, strategy::fully_sharded<>>;
#pragma once

#include <weft/base/dtype.hpp>

namespace weft::precision {

/// As the model is written.
struct f32 {
  static constexpr dtype products = dtype::f32;
};
/// Operands and results of f32 products are bf16; sums in f32. Parameters, gradients and the
/// optimiser stay f32. As torch.autocast with bfloat16.
struct bf16 {
  static constexpr dtype products = dtype::bf16;
};
/// The same with IEEE halves, whose range is small: losses are scaled (run/loss_scale.hpp).
struct f16 {
  static constexpr dtype products = dtype::f16;
};

}  // namespace weft::precision
