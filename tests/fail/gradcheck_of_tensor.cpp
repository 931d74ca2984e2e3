// SPDX-License-Identifier: MIT
// within 12: weft: gradcheck: x must be a variable: variable<double, extents<3>> x(t); gradcheck(f, x)
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<double, extents<3>> x) {
  gradcheck([&] { return sum(x * x); }, x);
}
