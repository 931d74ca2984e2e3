// SPDX-License-Identifier: MIT
// within 12: weft: eval: one expression at a time: auto y = eval(a); auto z = eval(b)
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<3>> x) { eval(x + 1, x * x); }
