// SPDX-License-Identifier: MIT
// Descriptions of program steps and their costs, for profilers and the planner.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <weft/device/kernel.hpp>
#include <weft/device/native.hpp>

namespace weft::runtime {

/// A step: its op, or the ops that a kernel fuses, with the shape and type of its result; floating-point
/// operations, for products, convolutions and attention; bytes of operands and results.
struct step_text {
  std::string name;  // "matmul [32, 768] x [768, 10] f32", "multiply, add, tanh [32, 768] f32"
  double operations = 0;
  std::int64_t bytes = 0;
};

/// Bytes of operands and results, without elements that strides of 0 repeat.
std::int64_t bytes_of_tensors(std::span<const strided> tensors);
std::int64_t bytes_of_kernel(const kernel_call& call);
/// Floating-point operations of a product of t[0] and t[1].
double operations_of_product(std::span<const strided> t);
/// The same for any native op; 0 for ops other than attention and convolutions. Attention counts all pairs of
/// positions, including those that it skips when causal, and no recomputation.
double operations_of_native(const native_code& code, std::span<const strided> in,
                            std::span<const strided> out);

/// For a launch of fused kernels.
step_text text_of_launch(std::span<const kernel_call* const> calls);
/// For a product of operands t[0] and t[1] with the result t[2].
step_text text_of_product(std::span<const strided> t);
/// For any other step.
step_text text_of_native(const char* op, const native_code& code, const attributes& at,
                         std::span<const strided> in, std::span<const strided> out);

}  // namespace weft::runtime

#ifndef WEFT_COMPILED
#include <weft/run/impl/step_text.ipp>
#endif
