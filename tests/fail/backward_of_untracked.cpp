// SPDX-License-Identifier: MIT
// within 12: weft: backward: this tensor is not tracked: it must be the result of tape.eval(...), not of eval(...)
#include <weft/weft.hpp>
using namespace weft;
void f(variable<float, extents<32>> x) {
  tape steps;
  steps.backward(eval(sum(x)));
}
