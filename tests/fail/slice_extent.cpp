// SPDX-License-Identifier: MIT
// within 12: a dim or bound is out of range for this operand
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<9>> x) { auto y = slice<0, 5, 20>(x); }
