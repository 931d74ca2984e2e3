// SPDX-License-Identifier: MIT
// within 12: weft: clone: this expression is not computed yet; evaluating it makes a new tensor: auto y = eval(expression)
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<32>> x) {
  auto y = clone(x + 1.0f);
}
