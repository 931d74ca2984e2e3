// SPDX-License-Identifier: MIT
// within 12: matmul: both operands must have the same floating type
// within 12: float
// within 12: double
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<2, 3>> x, tensor<double, extents<3, 4>> w) { auto y = matmul(x, w); }
