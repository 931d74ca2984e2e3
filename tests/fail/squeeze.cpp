// SPDX-License-Identifier: MIT
// within 10: weft: squeeze: the extent is not 1 in the type: select<1, 0>(x) takes the first element
// at most 20 lines
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<4, dyn>> x) { auto y = squeeze<1>(x); }
