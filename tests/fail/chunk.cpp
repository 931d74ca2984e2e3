// SPDX-License-Identifier: MIT
// within 12: chunk: the parts are numbered 0 to Parts - 1
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<9>> x) { auto y = chunk<0, 3, -1>(x); }
