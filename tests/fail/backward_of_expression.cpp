// SPDX-License-Identifier: MIT
// within 12: weft: backward: this expression is not computed yet: auto y = tape.eval(expression); tape.backward(y)
#include <weft/weft.hpp>
using namespace weft;
void f(variable<float, extents<32>> x) {
  tape steps;
  steps.backward(sum(x));
}
