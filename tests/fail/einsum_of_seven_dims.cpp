// SPDX-License-Identifier: MIT
// within 12: weft: einsum: the result would have more than 6 dims
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<1, 2, 3, 4>> x, tensor<float, extents<5, 6, 7>> y) { einsum<"abcd,efg">(x, y); }
