// SPDX-License-Identifier: MIT
// within 12: backward: a value that is not a scalar needs a seed
#include <weft/weft.hpp>
using namespace weft;
void f(variable<float, extents<32, 10>> x) {
  tape steps;
  steps.backward(x);
}
