// SPDX-License-Identifier: MIT
// within 10: for the elements where a mask holds, where(mask, x, 0)
// at most 20 lines
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<dyn, 4>> x) { x[x > 0.0f]; }
