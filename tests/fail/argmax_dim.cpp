// SPDX-License-Identifier: MIT
// within 12: weft: argmax, argmin: the dim is out of range for this operand
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<1, 2, 1, 2, 1, 2>> x) { argmax<6>(x); }
