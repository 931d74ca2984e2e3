// SPDX-License-Identifier: MIT
// One fused expression: nothing is computed until eval, then in one pass.
#include <iostream>

#include <weft/weft.hpp>

int main() {
  using namespace weft;
  auto x = randn<float>(extents<dyn, 784>{32, 784});  // batch at run time, features at compile time
  auto w = randn<float>(extents<784, 128>{}, {.seed = 1});
  auto y = relu(matmul(x, w) + 1.0f);                 // an expression; safe to return and to store
  std::cout << eval(y) << '\n';
  // matmul(x, transpose(w)) does not compile; the message contains the rule and both shapes.
}
