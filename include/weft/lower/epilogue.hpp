// SPDX-License-Identifier: MIT
// Kernels that libraries for matrix products can compute together with a product: element-wise ops that
// follow it, and column sums of an operand.
//
//   const epilogue e = epilogue_of(call.instructions, 0);     // of a kernel whose argument 0 is the product
#pragma once

#include <cstdint>
#include <span>

#include <weft/base/dtype.hpp>

namespace weft::lower {

/// A kernel over elements that stores f(product + terms), with at most two terms, in any order.
struct epilogue {
  int product = -1;             // arguments of the kernel
  int terms[2] = {-1, -1};      // f32; -1 if there is none
  int result = -1;
  dtype type = dtype::f32;      // of the result in memory
  bool gelu = false;            // f is gelu_tanh, otherwise the identity
  bool found() const { return result >= 0; }
};

/// The epilogue that these instructions compute from argument number `product`, which they read once; empty
/// if they compute anything else.
[[gnu::cold]] epilogue epilogue_of(std::span<const std::uint64_t> instructions, int product);

/// The number of the result of a kernel that only sums the columns of argument 0; -1 for other kernels.
[[gnu::cold]] int column_sums_of(std::span<const std::uint64_t> instructions);

}  // namespace weft::lower

#ifndef WEFT_COMPILED
#include <weft/lower/impl/epilogue.ipp>
#endif
