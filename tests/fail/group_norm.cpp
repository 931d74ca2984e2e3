// SPDX-License-Identifier: MIT
// within 12: weft: group_norm: the operand must be [batch, channels, ...], the number of groups must divide the channels
// within 12: extents<2, 6, 5>
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<2, 6, 5>> x, tensor<float, extents<6>> w) { group_norm<4>(x, w, w); }
