// SPDX-License-Identifier: MIT
// Kernels that libraries of matrix products compute together with a product: what follows it element by
// element, and column sums of an operand.
//
//   const epilogue e = epilogue_of(call.instructions, 0);     // of a kernel whose argument 0 is the product
#pragma once

#include <cstdint>
#include <span>

#include <weft/base/dtype.hpp>

namespace weft::lower {

/// A kernel of elements that stores f(product + terms), of at most two terms in any order.
struct epilogue {
  int product = -1;             // arguments
  int terms[2] = {-1, -1};      // f32; -1: there is none
  int result = -1;
  dtype type = dtype::f32;      // of the result in memory
  bool gelu = false;            // f is gelu_tanh; else it is the identity
  bool found() const { return result >= 0; }
};

/// What these instructions compute of argument number `product`, which they read once; nothing if it is
/// something else.
[[gnu::cold]] epilogue epilogue_of(std::span<const std::uint64_t> instructions, int product);

/// The number of the result of a kernel that does nothing but sum the columns of argument 0; -1 for others.
[[gnu::cold]] int column_sums_of(std::span<const std::uint64_t> instructions);

}  // namespace weft::lower

#ifndef WEFT_COMPILED
#include <weft/lower/impl/epilogue.ipp>
#endif
