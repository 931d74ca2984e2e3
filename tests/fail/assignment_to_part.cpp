// SPDX-License-Identifier: MIT
// within 12: weft: nothing is assigned to a part of a tensor: choose by position, update(t, where(c, y, t))
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<3, 2>> t) { t[0] = t[1]; }
void g(tensor<float, extents<3, 2>> t) { slice<0, 0, 1>(t) = slice<0, 1, 2>(t); }
void h(tensor<float, extents<3, 2>> t) { t[0] = zeros<float>(extents<2>{}); }
