// SPDX-License-Identifier: MIT
// within 12: matmul: the last extent of the left operand must equal the second-to-last
// within 12: extents<32, 784>
// within 12: extents<128, 10>
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<32, 784>> x, tensor<float, extents<128, 10>> w) { auto y = matmul(x, w); }
