// SPDX-License-Identifier: MIT
// within 12: pad: zeros can be added, not removed
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<9>> x) { auto y = pad<0, -2, 0>(x); }
