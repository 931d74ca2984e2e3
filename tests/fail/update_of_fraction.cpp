// SPDX-License-Identifier: MIT
// within 12: weft: update: a tensor of integers cannot take a fraction: cast it
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<int, extents<3, 2>> t) { update(t[0], 0.5); }
