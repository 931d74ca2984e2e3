// SPDX-License-Identifier: MIT
// within 12: weft: nothing can be assigned to an expression, not even to a part of a tensor: write update(t[i], e), update(slice<1>(t, 2, 5), e)
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<3, 2>> t) { t[0] = t[1]; }
void g(tensor<float, extents<3, 2>> t) { slice<0, 0, 1>(t) = slice<0, 1, 2>(t); }
void h(tensor<float, extents<3, 2>> t) { t[0] = zeros<float>(extents<2>{}); }
