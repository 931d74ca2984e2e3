// SPDX-License-Identifier: MIT
// within 12: topk: the dim has fewer than k elements
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<4, 3>> x) { auto y = topk<1, 5>(x); }
