// SPDX-License-Identifier: MIT
// within 30: weft: recurrence: the first state must have the element type of the sequence
#include <weft/weft.hpp>
using namespace weft;
void f(lstm<3, 5> layer, tensor<float, extents<dyn, dyn, 3>> x, tensor<double, extents<2, 4, 5>> state) {
  eval(layer(x, state));
}
