// SPDX-License-Identifier: MIT
// Kernels of a program that a device may compute together with a product: the one that reads its result next,
// or one that sums the columns of an operand.
#pragma once

#include <weft/device/backend.hpp>
#include <weft/lower/epilogue.hpp>
#include <weft/lower/plan.hpp>

namespace weft::runtime {

/// What may be computed together with a product.
struct joined_product {
  int step = -1;           // the kernel's; -1: there is none
  lower::epilogue next{};  // if it is the next step, and alone reads the result; else it sums columns
  bool of_right = false;   // of operand 1, not 0
};

/// The kernel to join to the product that is step `step`, before extents are known. `next_is_alone`: whether
/// the next step is launched alone.
[[gnu::cold]] joined_product joined_product_of(const lower::plan_view& p, int step, bool next_is_alone);

/// Computes a product of `t`, operands and result, together with the kernel; false, with nothing done, if the
/// device or the layouts do not allow it.
bool multiply_joined(backend& device, std::span<const strided> t, const joined_product& how,
                     const kernel_args& kernel);

}  // namespace weft::runtime

#ifndef WEFT_COMPILED
#include <weft/run/impl/joined_product.ipp>
#endif
