// SPDX-License-Identifier: MIT
// within 12: weft: einsum: both operands must have the same floating type
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<int, extents<3>> x, tensor<int, extents<3>> y) { einsum<"i,i->">(x, y); }
