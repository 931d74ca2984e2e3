// SPDX-License-Identifier: MIT
// Prints a value, for debugging.
//
//   debug(matmul(x, w));      // main.cpp:12: f32 [2, 3], then the elements
//
// `tap` prints values inside a statement without changing it; gdb.py prints tensors in gdb.
#pragma once

#include <iostream>

#include <weft/run/eval.hpp>
#include <weft/tensor/print.hpp>

namespace weft {

/// Evaluates `x` unless it is a tensor, and prints file and line of the call, dtype, shape and elements to
/// stderr, with the middle of long dims elided. Records nothing on a tape. Throws what `eval` throws.
template <expression X>
void debug(const X& x, context& c = default_context(), const char* file = __builtin_FILE(),
           int line = __builtin_LINE()) {
  std::cerr << file << ':' << line << ": ";
  if constexpr (requires { X::is_leaf; }) std::cerr << x << std::endl;
  else std::cerr << eval(x, c) << std::endl;
}

}  // namespace weft
