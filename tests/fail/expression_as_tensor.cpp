// SPDX-License-Identifier: MIT
// within 10: nothing is computed yet: auto h = e keeps the expression
// at most 20 lines
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<dyn, 4>> x) { x = x + 1; }
