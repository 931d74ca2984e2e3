// SPDX-License-Identifier: MIT
// within 12: weft: a tensor that is not tracked cannot be assigned a value that is, whose gradient would be lost: begin with auto h = steps.eval(h0)
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<dyn, 3>> h, linear<3, 3> cell) {
  tape steps;
  for (int t = 0; t < 3; ++t) h = steps.eval(tanh(cell(h)));
}
