// SPDX-License-Identifier: MIT
// within 12: weft: rotary: the operand must be [batch, position, head, feature], with an even number of features
// within 12: extents<2, 9, 3, 7>
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<2, 9, 3, 7>> x) { rotary(x); }
