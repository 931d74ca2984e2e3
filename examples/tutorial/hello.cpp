// SPDX-License-Identifier: MIT
// docs/getting_started.md: the first program.
// [all]
#include <iostream>

#include <weft/weft.hpp>
using namespace weft;

int main() {
  auto x = from(extents<2, 3>{}, std::vector<float>{1, 2, 3, 4, 5, 6});
  auto w = ones<float>(extents<3, 2>{});
  auto y = relu(matmul(x, w) - 10.0f);   // an expression: nothing is computed yet
  std::cout << eval(y) << '\n';          // computed and printed
}
// [/all]
