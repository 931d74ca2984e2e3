// SPDX-License-Identifier: MIT
// within 10: a conversion keeps the number of dims and static extents
// within 10: extents<4, 4>
// within 10: extents<4>
// at most 20 lines
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<4, 4>> x) { tensor<float, extents<4>> y(x); }
