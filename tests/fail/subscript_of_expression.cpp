// SPDX-License-Identifier: MIT
// within 12: weft: x[i] is for tensors: write select<0>(x, i) for expressions
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<32, 10>> x) { (x + x)[0]; }
