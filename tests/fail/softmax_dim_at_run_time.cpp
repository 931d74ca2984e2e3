// SPDX-License-Identifier: MIT
// within 12: weft: the dim is a template argument: softmax<0>(x)
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<32, 10>> x) { softmax(x, 0); }
