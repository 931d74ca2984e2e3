// SPDX-License-Identifier: MIT
// within 12: slice: bounds count from the beginning
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<9>> x) { auto y = slice<0, 0, -2>(x); }
