// SPDX-License-Identifier: MIT
// within 12: weft: nothing is computed in place: write auto y = a + b
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<32, 10>> a, tensor<float, extents<32, 10>> b) { a += b; }
