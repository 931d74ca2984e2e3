// SPDX-License-Identifier: MIT
// Kernels of a program that a device may compute together with a matrix product: the kernel that reads its
// result next, or one that sums the columns of an operand.
#pragma once

#include <weft/device/backend.hpp>
#include <weft/lower/epilogue.hpp>
#include <weft/lower/plan.hpp>

namespace weft::runtime {

/// What may be computed together with a product.
struct joined_product {
  int step = -1;           // the kernel's step; -1 if there is none
  lower::epilogue next{};  // if it is the next step and alone reads the result; otherwise it sums columns
  bool of_right = false;   // of operand 1, not operand 0
};

/// The kernel to join to the product at step `step`, before extents are known. `next_is_alone`: whether the
/// next step is launched alone.
[[gnu::cold]] joined_product joined_product_of(const lower::plan_view& p, int step, bool next_is_alone);

/// Computes a product of `t` (operands and result) together with the kernel; returns false, with nothing
/// done, if the device or the layouts do not allow it.
bool multiply_joined(backend& device, std::span<const strided> t, const joined_product& how,
                     const kernel_args& kernel);

}  // namespace weft::runtime

#ifndef WEFT_COMPILED
#include <weft/run/impl/joined_product.ipp>
#endif
