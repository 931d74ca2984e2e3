// SPDX-License-Identifier: MIT
// within 12: weft: eval: one expression at a time: auto y = steps.eval(a); auto z = steps.eval(b)
#include <weft/weft.hpp>
using namespace weft;
void f(variable<float, extents<3>> x) {
  tape steps;
  steps.eval(x + 1, x * x);
}
