// SPDX-License-Identifier: MIT
// within 12: weft: gradcheck: differences of this element type are too coarse: variable<double, ...>
#include <weft/weft.hpp>
using namespace weft;
void f(variable<bfloat16, extents<3>> x) {
  gradcheck([&] { return sum(x * x); }, x);
}
